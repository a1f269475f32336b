//! What is left of a list from one of its members on: [`crate::template::source`] puts this filter on a slice that a
//! loop goes over. The slice itself is gone through from the list's beginning.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The members of a list from `from` on.
#[derive(Debug)]
struct Rest {
    list: Value,
    from: usize,
    len: usize,
}

impl Object for Rest {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.len)?;
        self.list.get_item_by_index(self.from + index).ok()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// `slice` of `list` from `from` on; what is no list, or begins behind its end, stays the slice that it is.
///
/// # Errors
/// `list` is nothing, of which minijinja makes an empty slice and Python none.
pub(super) fn rest(slice: Value, list: Value, from: &Value) -> Result<Value, Error> {
    match (list.kind(), from.as_usize(), list.len()) {
        (kind @ (ValueKind::Undefined | ValueKind::None), ..) => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} cannot be sliced")))
        }
        (ValueKind::Seq, Some(from), Some(len)) if from <= len => {
            Ok(Value::from_object(Rest { list, from, len: len - from }))
        }
        _ => Ok(slice),
    }
}
