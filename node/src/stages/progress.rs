//! Reports of long work, now and then.

use std::time::Duration;

use mesh_gguf::Progress;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;

/// How often work that goes on is reported.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The outcome of `work`; meanwhile `report` gets what changes in `progress`, now and then.
///
/// # Cancel safety
/// May be dropped where `work` may.
pub async fn reported<T>(
    work: impl Future<Output = T>,
    progress: watch::Receiver<Progress>,
    mut report: impl FnMut(Progress),
) -> T {
    let mut reports = Box::pin(WatchStream::from_changes(progress).throttle(REPORT_EVERY));
    tokio::pin!(work);
    loop {
        tokio::select! {
            outcome = &mut work => return outcome,
            Some(now) = reports.next() => report(now),
        }
    }
}
