//! `GET /metrics`: what the gateway counts, in the text format of Prometheus (OpenMetrics). Names and labels are an
//! interface.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use mesh_types::{MeshView, ModelView};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::body::{self, ResponseBody};

const CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    endpoint: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    active: Gauge,
    tokens: Family<Kind, Counter>,
    first_event: Histogram,
    duration: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("mesh_gateway");
        let requests = Family::default();
        registry.register("requests", "Requests that got the head of a response", Family::clone(&requests));
        let active = Gauge::default();
        registry.register("active_requests", "Requests being answered", active.clone());
        let tokens = Family::default();
        registry.register("tokens", "Tokens of finished answers", Family::clone(&tokens));
        let seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 18));
        let (first_event, duration) = (seconds(), seconds());
        let help = "From the end of a request's head to the first text, thought or call";
        registry.register_with_unit("time_to_first_event", help, Unit::Seconds, first_event.clone());
        let help = "From the end of a request's head to the end of its answer";
        registry.register_with_unit("request_duration", help, Unit::Seconds, duration.clone());
        Self { registry, requests, active, tokens, first_event, duration }
    }

    /// A response's head went out.
    pub(crate) fn answered(&self, endpoint: &'static str, status: StatusCode) {
        self.requests.get_or_create(&Answered { endpoint, status: status.as_u16() }).inc();
    }

    /// Answers that began, or (negative) ended.
    pub(crate) fn active(&self, change: i64) {
        self.active.inc_by(change);
    }

    /// A run finished.
    pub(crate) fn tokens(&self, prompt: u32, cached: u32, completion: u32) {
        for (kind, count) in [("prompt", prompt), ("cached", cached), ("completion", completion)] {
            self.tokens.get_or_create(&Kind { kind }).inc_by(count.into());
        }
    }

    pub(crate) fn first_event(&self, after: Duration) {
        self.first_event.observe(after.as_secs_f64());
    }

    pub(crate) fn ended(&self, after: Duration) {
        self.duration.observe(after.as_secs_f64());
    }

    /// The page: what was counted here, and what nodes say of their models.
    pub(crate) fn page(&self, view: &MeshView) -> Response<ResponseBody> {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text.truncate(text.trim_end_matches("# EOF\n").len());
        models(view, &mut text);
        text.push_str("# EOF\n");
        let mut response = body::json(StatusCode::OK, text.into_bytes());
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        response
    }
}

/// A number in a model's row of the view.
type Reading = fn(&ModelView) -> u32;

fn models(view: &MeshView, text: &mut String) {
    let rows = || view.peers.iter().flat_map(|peer| peer.models.iter().map(move |model| (peer, model)));
    let gauges: [(&str, &str, Reading); 3] = [
        ("mesh_model_ready", "Whether the model answers at the node", |model| u32::from(model.ready)),
        ("mesh_model_active", "Sequences being served", |model| model.active),
        ("mesh_model_queued", "Sequences waiting for a slot", |model| model.queued),
    ];
    for (name, help, value) in gauges {
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} gauge\n");
        for (peer, model) in rows() {
            let (node, label) = (escaped(&peer.name), escaped(model.name.as_str()));
            let _ = writeln!(text, "{name}{{model=\"{label}\",node=\"{node}\"}} {}", value(model));
        }
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
