//! What is at which path.

use axum::Router;
use axum::extract::{Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use super::guard::guard;
use super::stream::events;
use super::{Shared, count};
use crate::metrics::{self, Format, Scrape};
use crate::process::{Process, boot_time};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// The dashboard, as it is compiled in. uPlot 1.6.32 is MIT-licensed (assets/uplot-LICENSE).
const ASSETS: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("../assets/index.html")),
    ("/app.js", SCRIPT, include_str!("../assets/app.js")),
    ("/chart.js", SCRIPT, include_str!("../assets/chart.js")),
    ("/format.js", SCRIPT, include_str!("../assets/format.js")),
    ("/panels.js", SCRIPT, include_str!("../assets/panels.js")),
    ("/style.css", STYLE, include_str!("../assets/style.css")),
    ("/icon.svg", PICTURE, include_str!("../assets/icon.svg")),
    ("/uplot.js", SCRIPT, include_str!("../assets/uPlot.iife.min.js")),
    ("/uplot.css", STYLE, include_str!("../assets/uPlot.min.css")),
];

/// The longest span of the history.
const DAY: u64 = 86_400;

pub fn router(shared: Shared) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(scrape))
        .route("/history", get(history))
        .route("/events", get(events));
    for (path, kind, text) in ASSETS {
        router = router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }));
    }
    // The guard comes first for every path, also for those that are not there.
    router
        .fallback(|| async { (StatusCode::NOT_FOUND, "There is /, and /metrics.\n") })
        .layer(from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

async fn scrape(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let sample = shared.observed.sample();
    let pid = sample.answers.status.as_ref().map(|status| status.pid.to_string());
    let scrape = Scrape {
        clock: shared.observed.clock(),
        counts: shared.observed.counts(),
        served: shared.counters.now(),
        own_process: Process::read("self"),
        daemon_process: pid.and_then(|pid| Process::read(&pid)),
        boot_time: boot_time(),
        sample,
    };
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    match metrics::encode(scrape, format) {
        Ok(page) => ([(CONTENT_TYPE, format.content_type())], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[derive(Deserialize)]
struct Span {
    /// How far back, s.
    seconds: u64,
}

async fn history(State(shared): State<Shared>, Query(span): Query<Span>) -> Response {
    let columns = shared.observed.history(span.seconds.clamp(1, DAY));
    match serde_json::to_string(&columns) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(_) => {
            count(&shared.counters.busy);
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
