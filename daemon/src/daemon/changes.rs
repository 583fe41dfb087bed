//! What changes while the daemon runs: references by command, everything that can by another
//! configuration.
//!
//! A change happens as a whole or not at all, and nothing that references said is forgotten unless
//! they go.

use std::collections::BTreeMap;

use anyhow::Result;
use timevisor_estimate::Slot;
use timevisor_linux::clock::{boot_id, monotonic};
use timevisor_protocols::control::{
    Changed, ErrorCode, Request, Response, ServerSummary, SourceAdd,
};
use timevisor_time::Duration;

use super::Daemon;
use crate::clock::hex;
use crate::config::{Config, ReferenceConfig};
use crate::discipline::Discipline;
use crate::references::Reference;
use crate::report::error_response;
use crate::server::Server;
use crate::state_log::StateLog;

/// The old server's threads leave their sockets within a second.
const SERVER_RETRY: Duration = Duration::from_millis(100);
/// After this long, somebody else has them.
const SERVER_PATIENCE: Duration = Duration::from_secs(3);

/// A server that waits for the sockets of the one before.
pub struct ServerDue {
    pub next: Duration,
    until: Duration,
}

impl Daemon {
    /// Answers the requests that change references or the configuration.
    pub(super) fn change(&mut self, request: &Request) -> Response {
        let now = monotonic();
        match request {
            Request::SourceAdd(add) => self.add(add),
            Request::SourceRemove(names) => self.with_named(&names.names, Self::remove),
            Request::SourceBurst(names) => self.with_named(&names.names, |daemon, indices| {
                indices.iter().for_each(|index| daemon.references[*index].burst(now));
                daemon.said(indices, "is asked now")
            }),
            Request::SourceOffline(names) => {
                self.with_named(&names.names, |daemon, named| daemon.set_offline(named, true))
            }
            Request::SourceOnline(names) => {
                self.with_named(&names.names, |daemon, named| daemon.set_offline(named, false))
            }
            _ => match self.reload() {
                Ok(changed) => Response::Changed(changed),
                Err(error) => refused(&error, "correct the file; nothing has changed"),
            },
        }
    }

    fn with_named(
        &mut self,
        names: &[String],
        act: impl FnOnce(&mut Self, &[usize]) -> Response,
    ) -> Response {
        let configured = &self.config.references;
        if let Some(unknown) =
            names.iter().find(|name| !configured.iter().any(|c| c.is_called(name)))
        {
            let known: Vec<String> = configured.iter().map(ReferenceConfig::name).collect();
            let message = format!("no reference is called {unknown}");
            let step = format!("there are: {}", known.join(", "));
            return error_response(ErrorCode::NotFound, &message, &step);
        }
        let named = |config: &ReferenceConfig| {
            names.is_empty() || names.iter().any(|name| config.is_called(name))
        };
        let indices: Vec<usize> =
            (0..configured.len()).filter(|index| named(&configured[*index])).collect();
        act(self, &indices)
    }

    /// One line for each of these references.
    fn said(&self, indices: &[usize], what: &str) -> Response {
        let line = |index: &usize| format!("{} {what}", self.config.references[*index].name());
        let changes = indices.iter().map(line).collect();
        Response::Changed(Changed { changes, restart: Vec::new() })
    }

    fn set_offline(&mut self, indices: &[usize], offline: bool) -> Response {
        let now = monotonic();
        let changed: Vec<usize> = indices
            .iter()
            .copied()
            .filter(|index| self.references[*index].set_offline(now, offline))
            .collect();
        self.said(&changed, if offline { "is offline" } else { "is online" })
    }

    fn add(&mut self, add: &SourceAdd) -> Response {
        let parsed: Result<ReferenceConfig, _> = toml::from_str(&add.reference);
        let reference = match parsed {
            Ok(reference) => reference,
            Err(error) => {
                let message = format!("the reference is not understood: {}", error.message());
                let step = "give keys as in [[reference]] of the configuration file";
                return error_response(ErrorCode::BadRequest, &message, step);
            }
        };
        let name = reference.name();
        let mut references = self.config.references.clone();
        references.push(reference);
        let done = self.config.with_references(references);
        match done.and_then(|config| self.configure(config)) {
            Ok(()) => {
                tracing::info!("reference {name} was added by command");
                let changes =
                    vec![format!("{name} was added; it goes with the next restart or reload")];
                Response::Changed(Changed { changes, restart: Vec::new() })
            }
            Err(error) => refused(&error, "nothing has changed"),
        }
    }

    fn remove(&mut self, indices: &[usize]) -> Response {
        let all = &self.config.references;
        let names: Vec<String> = indices.iter().map(|index| all[*index].name()).collect();
        let kept: Vec<ReferenceConfig> = (0..all.len())
            .filter(|index| !indices.contains(index))
            .map(|index| all[index].clone())
            .collect();
        if kept.is_empty() {
            let message = "a clock without references knows no time";
            let step = "add another one first, or stop asking them: `timevisor sources offline`";
            return error_response(ErrorCode::BadRequest, message, step);
        }
        match self.config.with_references(kept).and_then(|config| self.configure(config)) {
            Ok(()) => {
                let names = names.join(", ");
                tracing::info!("reference {names} was removed by command");
                let changes = vec![format!("{names} was removed, with what it said")];
                Response::Changed(Changed { changes, restart: Vec::new() })
            }
            Err(error) => refused(&error, "nothing has changed"),
        }
    }

    /// Reads the configuration again, and takes over what can be.
    pub(super) fn reload(&mut self) -> Result<Changed> {
        let (new, source) = (self.load)()?;
        let successor = self.config.successor(&new);
        let next = successor.config.clone();
        next.validate()?;
        let retyped = self.vms.retyped_by(&next);
        self.configure(next)?;
        for key in &successor.restart {
            tracing::warn!("{source}: {key} differs, which takes a restart");
        }
        for vm in &retyped {
            tracing::warn!("{source}: the time_type of VM {vm} differs, which takes its restart");
        }
        let changed = successor.changed.join(", ");
        let changes = if changed.is_empty() { "nothing" } else { &changed };
        tracing::info!("{source} was read again; changed: {changes}");
        let line =
            |table: &&str| format!("{table} is in force as it is in {source}{}", scope(table));
        let takes = |key: &&str| format!("{key} differs and takes `systemctl restart timevisord`");
        let keeps = |vm: &String| format!("time_type differs and takes a restart of VM {vm}");
        let restart = successor.restart.iter().map(takes).chain(retyped.iter().map(keeps));
        Ok(Changed {
            changes: successor.changed.iter().map(line).collect(),
            restart: restart.collect(),
        })
    }

    /// Goes on with this valid configuration.
    fn configure(&mut self, config: Config) -> Result<()> {
        let now = monotonic();
        // What can fail comes first.
        config.timeline_setup()?;
        let arranged = Reference::arrange(
            &self.config.references,
            &mut self.references,
            &config.references,
            now,
        )?;
        let slots: Vec<Slot> = config
            .references
            .iter()
            .zip(&arranged)
            .map(|(config, (_, continues))| Slot { name: config.name(), continues: *continues })
            .collect();
        let log = |slot: &Slot| match slot.continues {
            Some(index) => self.told_references[index].clone(),
            None => StateLog::default(),
        };
        self.told_references = slots.iter().map(log).collect();
        self.references = arranged.into_iter().map(|(reference, _)| reference).collect();
        self.timelines.configure(&config, &slots)?;
        self.clock.configure(&config, &slots);
        self.vms.configure(&config);
        self.introspection.configure(&config.introspection);
        if config.reservations() != self.config.reservations() {
            self.reservations.configure(&config.reservations());
        }
        let before = std::mem::replace(&mut self.config, config);
        self.witnesses.clear();
        self.heed_witnesses();
        self.configure_discipline(&before, now);
        self.configure_server(&before, now);
        self.publish();
        Ok(())
    }

    fn configure_discipline(&mut self, before: &Config, now: Duration) {
        let same = self.config.clock.discipline == before.clock.discipline
            && self.config.steering() == before.steering();
        if same {
            return;
        }
        if let Some(mut discipline) = self.discipline.take() {
            discipline.stop();
        }
        match boot_id() {
            Ok(boot) => {
                self.discipline = Discipline::start(&self.config, hex(&boot), &self.clock, now);
            }
            Err(error) => tracing::error!("CLOCK_REALTIME is not steered: no boot id: {error}"),
        }
    }

    fn configure_server(&mut self, before: &Config, now: Duration) {
        let same = self.config.server == before.server;
        if same && self.config.clusters == before.clusters {
            return;
        }
        // Its thread ends, and with it the sockets that the next one needs.
        self.server = None;
        self.server_problem = None;
        let wanted = !self.config.server.listen.is_empty();
        self.server_due = wanted.then_some(ServerDue { next: now, until: now + SERVER_PATIENCE });
    }

    /// What `status` says of the NTP server.
    pub(super) fn report_server(&self) -> Option<ServerSummary> {
        let missing = |problem: &String| ServerSummary {
            listen: self.config.server.listen.iter().map(ToString::to_string).collect(),
            problem: Some(problem.clone()),
            requests: BTreeMap::new(),
            nts: None,
        };
        let running = self.server.as_ref().map(Server::report);
        running.or_else(|| self.server_problem.as_ref().map(missing))
    }

    /// Starts the NTP server when the sockets of the one before are free.
    pub(super) fn start_server(&mut self, now: Duration) {
        let Some(due) = self.server_due.take_if(|due| now >= due.next) else { return };
        let directory = &self.config.run_directory;
        match Server::start(
            &self.config.server,
            &self.config.clusters,
            directory,
            self.clock.calibration,
        ) {
            Ok(server) => {
                self.server = server;
                self.publish();
            }
            Err(error) if now >= due.until => {
                let problem = format!("{error:#}; correct [server] and reload");
                tracing::error!("there is no NTP server now: {problem}");
                self.server_problem = Some(problem);
            }
            Err(_) => self.server_due = Some(ServerDue { next: now + SERVER_RETRY, ..due }),
        }
    }
}

/// To whom a table that has changed applies, where that is not everybody.
fn scope(table: &str) -> &'static str {
    match table {
        "[introspection]" => ", for guests that are attached from now on",
        _ => "",
    }
}

fn refused(error: &anyhow::Error, step: &str) -> Response {
    error_response(ErrorCode::BadRequest, &format!("{error:#}"), step)
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
