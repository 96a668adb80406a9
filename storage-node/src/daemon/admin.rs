//! The admin endpoint: probes, status and metrics by HTTP.
//!
//! | path | 200 when | else |
//! |---|---|---|
//! | /startupz | every shard has read its log back and clients can connect | 503 |
//! | /livez | every shard answers in time | 503 |
//! | /readyz | every shard takes appends and the node is not draining | 503 |
//! | /status | always: JSON | |
//! | /metrics | always: Prometheus' text format | |
//!
//! A 503 says why, a reason a line. Each request asks the shards anew: an answer is never older than the request.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::routing::get;
use storage_node::status::ShardCommand;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::control::Stage;
use super::process::ProcessFigures;
use super::report::About;
use super::{health, metrics, report};

/// What the endpoint reports on.
pub(crate) struct Admin {
    pub(crate) about: About,
    pub(crate) shards: Vec<mpsc::Sender<ShardCommand>>,
    pub(crate) stage: watch::Receiver<Stage>,
}

type Answer = (StatusCode, [(HeaderName, &'static str); 2], String);

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    if let Err(error) = axum::serve(listener, router(admin)).await {
        tracing::error!(%error, "the admin endpoint has ended");
    }
}

fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/startupz", get(startupz))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

async fn startupz(State(admin): State<Arc<Admin>>) -> Answer {
    let shards = health::ask(&admin.shards).await;
    let mut reasons = if health::all_recovered(&shards) { Vec::new() } else { health::not_ready(&shards) };
    if matches!(*admin.stage.borrow(), Stage::Starting) {
        reasons.push("the node is starting".to_owned());
    }
    probe(&reasons)
}

async fn livez(State(admin): State<Arc<Admin>>) -> Answer {
    probe(&health::not_live(&health::ask(&admin.shards).await))
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Answer {
    let mut reasons = health::not_ready(&health::ask(&admin.shards).await);
    match *admin.stage.borrow() {
        Stage::Starting => reasons.push("the node is starting".to_owned()),
        Stage::Serving { .. } => {}
        Stage::Draining { .. } => reasons.push("the node is draining".to_owned()),
    }
    probe(&reasons)
}

async fn status(State(admin): State<Arc<Admin>>) -> Answer {
    let shards = health::ask(&admin.shards).await;
    let json = report::status(&admin.about, &admin.stage.borrow(), &shards);
    answer(StatusCode::OK, "application/json", format!("{json:#}\n"))
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Answer {
    let shards = health::ask(&admin.shards).await;
    answer(StatusCode::OK, metrics::CONTENT_TYPE, metrics::render(&admin.about, &shards, &ProcessFigures::read()))
}

fn probe(reasons: &[String]) -> Answer {
    if reasons.is_empty() {
        answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned())
    } else {
        answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", reasons.join("\n") + "\n")
    }
}

fn answer(code: StatusCode, kind: &'static str, body: String) -> Answer {
    (code, [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], body)
}

#[cfg(test)]
mod tests;
