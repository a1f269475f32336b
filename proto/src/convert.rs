//! Between wire messages and `mesh-types`, in both directions. What comes off the wire is checked here.

mod chat;

use mesh_types::{
    ByteSize, Digest, ErrorClass, Fault, FinishReason, LayerRange, LinkView, ModelId, ModelView, PeerId, PeerState,
    PeerView, Speed, StageView, Usage,
};
use prost::Message as _;
use tonic::{Code, Status};

use crate::v1;

/// A wire message lacked something, or held a value that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

const CLASSES: [(ErrorClass, &str, Code); 8] = [
    (ErrorClass::InvalidRequest, "invalid_request", Code::InvalidArgument),
    (ErrorClass::NotFound, "not_found", Code::NotFound),
    (ErrorClass::Overloaded, "overloaded", Code::ResourceExhausted),
    (ErrorClass::Unavailable, "unavailable", Code::Unavailable),
    (ErrorClass::Deadline, "deadline", Code::DeadlineExceeded),
    (ErrorClass::Cancelled, "cancelled", Code::Cancelled),
    (ErrorClass::PeerProtocol, "peer_protocol", Code::FailedPrecondition),
    (ErrorClass::Internal, "internal", Code::Internal),
];

/// A refusal as a gRPC status: the fault travels whole in the details.
pub fn fault_to_status(fault: &Fault) -> Status {
    let code = CLASSES.iter().find(|row| row.0 == fault.class).map_or(Code::Internal, |row| row.2);
    let details = v1::Fault::from(fault).encode_to_vec();
    Status::with_details(code, fault.message.clone(), details.into())
}

/// The fault in a status; a status without one (a broken connection, say) is classified by its code.
pub fn status_to_fault(status: &Status) -> Fault {
    if !status.details().is_empty()
        && let Ok(fault) = v1::Fault::decode(status.details())
        && !fault.message.is_empty()
    {
        return fault.into();
    }
    let class = match status.code() {
        // What the transport reports when the peer's connection breaks.
        Code::Unknown | Code::Aborted => ErrorClass::Unavailable,
        code => CLASSES.iter().find(|row| row.2 == code).map_or(ErrorClass::Internal, |row| row.0),
    };
    Fault::new(class, status.message().to_owned())
}

impl From<&Fault> for v1::Fault {
    fn from(fault: &Fault) -> Self {
        let class = CLASSES.iter().find(|row| row.0 == fault.class).map_or("internal", |row| row.1);
        Self {
            class: class.to_owned(),
            message: fault.message.clone(),
            param: fault.param.clone(),
            code: fault.code.clone(),
        }
    }
}

impl From<v1::Fault> for Fault {
    fn from(fault: v1::Fault) -> Self {
        let class = CLASSES.iter().find(|row| row.1 == fault.class).map_or(ErrorClass::Internal, |row| row.0);
        Self { class, message: fault.message, param: fault.param, code: fault.code }
    }
}

/// The end of a run as a wire message.
pub fn finished(reason: FinishReason, usage: Usage) -> v1::Finished {
    let reason = match reason {
        FinishReason::Stop => v1::finished::Reason::Stop,
        FinishReason::Length => v1::finished::Reason::Length,
        FinishReason::ToolCalls => v1::finished::Reason::ToolCalls,
    };
    v1::Finished {
        reason: reason.into(),
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        accepted_tokens: usage.accepted_tokens,
        rejected_tokens: usage.rejected_tokens,
        stop: None,
    }
}

impl TryFrom<v1::Finished> for (FinishReason, Usage) {
    type Error = Malformed;

    fn try_from(finished: v1::Finished) -> Result<Self, Malformed> {
        let reason = match finished.reason() {
            v1::finished::Reason::Stop => FinishReason::Stop,
            v1::finished::Reason::Length => FinishReason::Length,
            v1::finished::Reason::ToolCalls => FinishReason::ToolCalls,
            v1::finished::Reason::Unspecified => return Err(Malformed("a finish without a reason")),
        };
        let usage = Usage {
            prompt_tokens: finished.prompt_tokens,
            completion_tokens: finished.completion_tokens,
            cached_tokens: finished.cached_tokens,
            reasoning_tokens: finished.reasoning_tokens,
            accepted_tokens: finished.accepted_tokens,
            rejected_tokens: finished.rejected_tokens,
        };
        Ok((reason, usage))
    }
}

impl From<LayerRange> for v1::LayerRange {
    fn from(range: LayerRange) -> Self {
        Self { start: range.start(), end: range.end() }
    }
}

impl TryFrom<v1::LayerRange> for LayerRange {
    type Error = Malformed;

    fn try_from(range: v1::LayerRange) -> Result<Self, Malformed> {
        Self::new(range.start, range.end).ok_or(Malformed("an empty layer range"))
    }
}

impl From<&ModelView> for v1::ModelStatus {
    fn from(model: &ModelView) -> Self {
        Self {
            name: model.name.to_string(),
            digest: model.digest.map(|digest| digest.0.to_vec()).unwrap_or_default(),
            ready: model.ready,
            detail: model.detail.clone(),
            context: model.context,
            layers: model.layers,
            nodes: model.nodes.clone(),
            ranges: model.ranges.iter().copied().map(Into::into).collect(),
            active: model.active,
            queued: model.queued,
            last_forward_ms: model.last_forward_ms,
            scripted: model.scripted,
            tools: model.tools.clone(),
        }
    }
}

impl TryFrom<v1::ModelStatus> for ModelView {
    type Error = Malformed;

    fn try_from(model: v1::ModelStatus) -> Result<Self, Malformed> {
        let digest = match model.digest.as_slice() {
            [] => None,
            bytes => Some(Digest::try_from(bytes).map_err(|_| Malformed("a digest that is not 32 bytes"))?),
        };
        Ok(Self {
            name: ModelId::new(model.name),
            digest,
            ready: model.ready,
            detail: model.detail,
            context: model.context,
            layers: model.layers,
            nodes: model.nodes,
            ranges: model.ranges.into_iter().map(LayerRange::try_from).collect::<Result<_, _>>()?,
            active: model.active,
            queued: model.queued,
            last_forward_ms: model.last_forward_ms,
            scripted: model.scripted,
            tools: model.tools,
        })
    }
}

impl From<&StageView> for v1::StageStatus {
    fn from(stage: &StageView) -> Self {
        Self {
            model: stage.model.to_string(),
            layers: Some(stage.layers.into()),
            state: stage.state.clone(),
            weight_bytes: stage.weights.0,
            memory_bytes: stage.memory.0,
            detail: stage.detail.clone(),
        }
    }
}

impl TryFrom<v1::StageStatus> for StageView {
    type Error = Malformed;

    fn try_from(stage: v1::StageStatus) -> Result<Self, Malformed> {
        Ok(Self {
            model: ModelId::new(stage.model),
            layers: stage.layers.ok_or(Malformed("a stage without layers"))?.try_into()?,
            state: stage.state,
            weights: ByteSize(stage.weight_bytes),
            memory: ByteSize(stage.memory_bytes),
            detail: stage.detail,
        })
    }
}

/// A peer's status as it enters the view. `id` is the identity that the connection proved.
///
/// # Errors
/// [`Malformed`] where a part cannot be.
pub fn peer_view(id: PeerId, status: v1::NodeStatus, state: PeerState, local: bool) -> Result<PeerView, Malformed> {
    Ok(PeerView {
        id,
        name: status.name,
        state,
        local,
        version: status.version,
        addresses: status.addresses,
        stage_addresses: status.stage_addresses,
        memory: ByteSize(status.memory_bytes),
        memory_free: ByteSize(status.memory_free_bytes),
        models: status.models.into_iter().map(ModelView::try_from).collect::<Result<_, _>>()?,
        stages: status.stages.into_iter().map(StageView::try_from).collect::<Result<_, _>>()?,
        speed: status.speed.map(|speed| Speed { decode: speed.decode, prefill: speed.prefill }),
        links: status.peers.iter().filter_map(link).collect(),
        draining: status.draining,
    })
}

fn link(to: &v1::PeerAddress) -> Option<LinkView> {
    let is_known = to.rtt_us > 0 || to.relayed;
    is_known.then(|| LinkView { peer: PeerId::new(to.peer_id.clone()), rtt_us: to.rtt_us, relayed: to.relayed })
}

impl From<Speed> for v1::Speed {
    fn from(speed: Speed) -> Self {
        Self { decode: speed.decode, prefill: speed.prefill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_a_status() {
        let fault = Fault::invalid("too long").with_param("messages").with_code("context_length_exceeded");
        let status = fault_to_status(&fault);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status_to_fault(&status), fault);
    }

    #[test]
    fn a_broken_connection_is_unavailable() {
        let fault = status_to_fault(&Status::unknown("transport error"));
        assert_eq!(fault.class, ErrorClass::Unavailable);
    }

    #[test]
    fn an_empty_layer_range_is_malformed() {
        assert!(LayerRange::try_from(v1::LayerRange { start: 3, end: 3 }).is_err());
    }
}
