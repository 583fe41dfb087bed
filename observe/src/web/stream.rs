//! News for browsers (server-sent events): each topic when it has changed, the clock each second.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use tokio::sync::watch;

use super::{Counters, MOST_VIEWERS, Shared, count};
use crate::view::View;

/// A browser that gets news.
struct Viewer {
    counters: Arc<Counters>,
    news: watch::Receiver<View>,
    /// What it has.
    has: Option<View>,
    waiting: VecDeque<Event>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.counters.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

pub async fn events(State(shared): State<Shared>) -> Response {
    let viewers = &shared.counters.viewers;
    if viewers.fetch_add(1, Ordering::Relaxed) >= MOST_VIEWERS {
        viewers.fetch_sub(1, Ordering::Relaxed);
        count(&shared.counters.busy);
        let text = "Too many browsers show this page; close some of them.\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let mut news = shared.observed.news();
    news.mark_changed();
    let viewer = Viewer {
        counters: Arc::clone(&shared.counters),
        news,
        has: None,
        waiting: VecDeque::new(),
    };
    let stream = unfold(viewer, |mut viewer| async move {
        Some((Ok::<_, Infallible>(viewer.next().await?), viewer))
    });
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

impl Viewer {
    /// The next event; `None` when there are no more. A browser that reads slowly misses samples, and
    /// gets the newest one.
    async fn next(&mut self) -> Option<Event> {
        while self.waiting.is_empty() {
            self.news.changed().await.ok()?;
            let view = self.news.borrow_and_update().clone();
            let events = view.news(self.has.as_ref());
            self.waiting.extend(events.map(|(name, data)| Event::default().event(name).data(data)));
            self.has = Some(view);
        }
        self.waiting.pop_front()
    }
}
