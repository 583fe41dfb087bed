//! The relay's end towards the host: whose turn it is, the requests sent, their answers, and
//! binding again.
//!
//! What it does not do: guess. If it is unknown whether the host has carried a request out (no
//! answer in time, an impossible answer), the relay gives the session up: the host forgets all of
//! it, and the relay binds again what applications need.

use std::ops::Bound::{Excluded, Unbounded};

use timevisor_time::Duration;

use super::ledger::Held;
use super::{Relay, RelayAction};
use crate::channel::client::ClientAction;
use crate::channel::message::{
    Bind, Binding, Bound, Epoch, Event, Problem, ProblemCode, Request, Response, Update,
};
use crate::channel::problem;

/// The relay's own requests to the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// Bind this binding of ours again.
    Restore(u64),
    /// End this binding at the host, which is not needed any more.
    Release(u64),
}

/// A request at the host.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Job(Job),
    App { app: u64, session: u64, id: u64, ask: Ask },
}

/// An application's request; bindings have the relay's numbers.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Bind(Bind),
    Update(Update),
    Unbind { local: u64, upstream: u64 },
    Timelines,
}

impl Relay {
    /// Sends what may be sent: the relay's own requests first, then one request of each application
    /// in turn.
    pub(super) fn pump(&mut self, now: Duration) {
        while let Some(at) = self.upstream.ready_at() {
            if at > now {
                return;
            }
            if let Some(job) = self.jobs.pop_front() {
                self.start(now, job);
            } else if let Some((app, session, id, request)) = self.next_request() {
                self.dispatch(now, app, session, id, request);
            } else {
                return;
            }
        }
        if self.upstream.session().is_some() {
            // Too many requests are unanswered; the next answer continues.
            return;
        }
        while let Some((app, session, id, request)) = self.next_request() {
            match request {
                Request::Unbind(Binding { binding }) => {
                    self.unbind_alone(app, session, id, binding);
                }
                _ => self.refuse(app, session, id, host_gone()),
            }
        }
    }

    /// Returns the next application's next request, with its session.
    fn next_request(&mut self) -> Option<(u64, u64, u64, Request)> {
        let after = (Excluded(self.turn), Unbounded);
        let mut in_turn = self.apps.range(after).chain(self.apps.range(..=self.turn));
        let turn = *in_turn.find(|(_, app)| !app.queue.is_empty())?.0;
        self.turn = turn;
        let app = self.apps.get_mut(&turn)?;
        let (id, request) = app.queue.pop_front()?;
        // A queue ends with its session.
        Some((turn, app.server.session()?, id, request))
    }

    fn start(&mut self, now: Duration, job: Job) {
        let request = match job {
            Job::Release(binding) => Request::Unbind(Binding { binding }),
            Job::Restore(local) => match self.ledger.get(local) {
                Some(held) => Request::Bind(held.bind.clone()),
                None => return,
            },
        };
        match self.upstream.request(now, &request) {
            Ok(id) => drop(self.pending.insert(id, Pending::Job(job))),
            Err(error) => self.give_up(now, &error.to_string()),
        }
    }

    fn dispatch(&mut self, now: Duration, app: u64, session: u64, id: u64, request: Request) {
        let prepared = match request {
            Request::Bind(bind) => {
                self.check_quota(app).map(|()| (Request::Bind(bind.clone()), Ask::Bind(bind)))
            }
            Request::Update(update) => match self.at_host(app, update.binding) {
                Ok(Some(binding)) => {
                    let to_host = Update { binding, ..update.clone() };
                    Ok((Request::Update(to_host), Ask::Update(update)))
                }
                Ok(None) => Err(host_gone()),
                Err(problem) => Err(problem),
            },
            Request::Unbind(Binding { binding: local }) => match self.at_host(app, local) {
                Ok(Some(upstream)) => {
                    let to_host = Request::Unbind(Binding { binding: upstream });
                    Ok((to_host, Ask::Unbind { local, upstream }))
                }
                Ok(None) => return self.unbind_alone(app, session, id, local),
                Err(problem) => Err(problem),
            },
            Request::Timelines => Ok((Request::Timelines, Ask::Timelines)),
            // The application's own session has answered these.
            Request::Hello(_) | Request::KeepAlive => return,
        };
        let sent = prepared.and_then(|(request, ask)| match self.upstream.request(now, &request) {
            Ok(upstream_id) => Ok((upstream_id, ask)),
            Err(error) => {
                let message = format!("the host cannot be asked: {error}");
                Err(problem(ProblemCode::Unavailable, &message, "ask again"))
            }
        });
        match sent {
            Ok((upstream_id, ask)) => {
                if let (Ask::Bind(_), Some(entry)) = (&ask, self.apps.get_mut(&app)) {
                    entry.making += 1;
                }
                self.pending.insert(upstream_id, Pending::App { app, session, id, ask });
            }
            Err(problem) => self.refuse(app, session, id, problem),
        }
    }

    /// Returns the host's number for an application's binding, while the host has it and it is not
    /// being ended.
    fn at_host(&self, app: u64, local: u64) -> Result<Option<u64>, Problem> {
        let held = self.ledger.of(app, local).filter(|_| !self.is_ending(local));
        held.map(Held::upstream).ok_or_else(no_such_binding)
    }

    fn is_ending(&self, local: u64) -> bool {
        let ends = |ask: &Ask| matches!(ask, Ask::Unbind { local: other, .. } if *other == local);
        self.pending.values().any(|p| matches!(p, Pending::App { ask, .. } if ends(ask)))
    }

    fn check_quota(&self, app: u64) -> Result<(), Problem> {
        let making = self.apps.get(&app).map_or(0, |app| app.making);
        let limit = self.config.limits.bindings;
        if self.ledger.of_app(app).len() + making < limit as usize {
            return Ok(());
        }
        let message = format!("an application has {limit} bindings at most");
        Err(problem(ProblemCode::Quota, &message, "end one of them"))
    }

    /// Ends a binding that the host does not have, or reports that it does not exist.
    fn unbind_alone(&mut self, app: u64, session: u64, id: u64, local: u64) {
        if self.ledger.of(app, local).is_none() {
            return self.refuse(app, session, id, no_such_binding());
        }
        self.release(local);
        self.answer(app, session, id, &Response::Unbound(Binding { binding: local }));
    }

    fn refuse(&mut self, app: u64, session: u64, id: u64, problem: Problem) {
        self.answer(app, session, id, &Response::Problem(problem));
    }

    /// Forgets a binding, here and at the host.
    pub(super) fn release(&mut self, local: u64) {
        // A binding that the application has asked to end is not ended twice, because the host may
        // reuse its number.
        let is_ending = self.is_ending(local);
        if let Some(binding) = self.ledger.remove(local).filter(|_| !is_ending) {
            self.jobs.push_back(Job::Release(binding));
        }
        if self.ledger.iter().next().is_none() {
            self.alone_since = None;
        }
    }

    pub(super) fn upstream_action(&mut self, now: Duration, action: ClientAction) {
        match action {
            // An answer about a binding that was given up in the meantime has no effect.
            ClientAction::Began(welcome) if self.upstream.session() != Some(welcome.session) => {}
            ClientAction::Began(welcome) => {
                self.alone_since = None;
                self.jobs = self.ledger.iter().map(|(local, _)| Job::Restore(local)).collect();
                self.actions.push(RelayAction::HostBegan(welcome));
            }
            ClientAction::Refused(problem) => self.actions.push(RelayAction::HostRefused(problem)),
            ClientAction::Unanswered => self.actions.push(RelayAction::HostUnanswered),
            ClientAction::Lost { reason } => {
                self.upstream_gone(now);
                self.actions.push(RelayAction::HostLost { reason });
            }
            ClientAction::TimedOut { .. } => self.give_up(now, "the host has not answered in time"),
            ClientAction::Event(event) => self.upstream_event(event),
            ClientAction::Response { id, response } => match self.pending.remove(&id) {
                Some(Pending::Job(job)) => self.job_done(now, job, response),
                Some(Pending::App { app, session, id, ask }) => {
                    self.app_answered(now, app, session, id, ask, response);
                }
                None => {}
            },
        }
    }

    /// Records that all requests and bindings at the host are void.
    pub(super) fn upstream_gone(&mut self, now: Duration) {
        self.jobs.clear();
        self.ledger.lose_all();
        for pending in std::mem::take(&mut self.pending).into_values() {
            let Pending::App { app, session, id, ask } = pending else { continue };
            self.made(app, &ask);
            match ask {
                Ask::Unbind { local, .. } => self.unbind_alone(app, session, id, local),
                _ => self.refuse(app, session, id, host_gone()),
            }
        }
        let alone = self.ledger.iter().next().is_some();
        self.alone_since = self.alone_since.or(Some(now)).filter(|_| alone);
    }

    fn give_up(&mut self, now: Duration, reason: &str) {
        for action in self.upstream.restart(now, reason) {
            self.upstream_action(now, action);
        }
    }

    fn job_done(&mut self, now: Duration, job: Job, response: Response) {
        match (job, response) {
            (_, Response::Problem(problem)) if problem.code == ProblemCode::RateLimited => {
                self.jobs.push_back(job);
            }
            // If the host does not know the binding, the result is the same.
            (Job::Release(_), Response::Unbound(_) | Response::Problem(_)) => {}
            (Job::Restore(local), Response::Bound(bound)) => self.restored(now, local, &bound),
            (Job::Restore(local), Response::Problem(problem)) => {
                if let Some(app) = self.ledger.get(local).map(|held| held.app) {
                    self.end_session(app, &format!("the host does not bind again: {problem}"));
                }
            }
            _ => self.give_up(now, "the host has answered something else"),
        }
    }

    fn restored(&mut self, now: Duration, local: u64, bound: &Bound) {
        if self.ledger.get(local).is_none() {
            // The application has gone in the meantime.
            self.jobs.push_back(Job::Release(bound.binding));
            return;
        }
        let Some(held) = self.ledger.restore(local, bound) else {
            return self.give_up(now, "the host has given one number to two bindings");
        };
        let was_met = std::mem::replace(&mut held.met, bound.met);
        let app = held.app;
        self.tell(app, &Event::Moved { binding: local, place: bound.place });
        if bound.epoch == Epoch::Local {
            // A timeline that existed only through its bindings has started at 0 again.
            self.tell(app, &Event::Disrupted { binding: local });
        }
        if was_met != bound.met {
            let (met, achieved) = (bound.met, bound.achieved.clone());
            self.tell(app, &Event::Quality { binding: local, met, achieved });
        }
    }

    fn app_answered(
        &mut self,
        now: Duration,
        app: u64,
        session: u64,
        id: u64,
        ask: Ask,
        response: Response,
    ) {
        self.made(app, &ask);
        let same_session =
            self.apps.get(&app).is_some_and(|entry| entry.server.session() == Some(session));
        let response = match (ask, response) {
            (Ask::Unbind { local, upstream }, Response::Problem(problem)) => {
                if problem.code == ProblemCode::NotFound {
                    self.ledger.remove(local);
                } else if self.ledger.get(local).is_none() {
                    // The application has gone in the meantime.
                    self.jobs.push_back(Job::Release(upstream));
                }
                Response::Problem(problem)
            }
            (_, Response::Problem(problem)) => Response::Problem(problem),
            (Ask::Bind(_), Response::Bound(bound)) if !same_session => {
                self.jobs.push_back(Job::Release(bound.binding));
                return;
            }
            (Ask::Bind(bind), Response::Bound(bound)) => {
                let Some(local) = self.ledger.enter(app, bind, &bound) else {
                    self.refuse(app, session, id, host_gone());
                    return self.give_up(now, "the host has given one number to two bindings");
                };
                Response::Bound(Bound { binding: local, ..bound })
            }
            (Ask::Update(update), Response::Bound(bound)) => {
                self.ledger.update(update.binding, &update, bound.met);
                Response::Bound(Bound { binding: update.binding, ..bound })
            }
            (Ask::Unbind { local, .. }, Response::Unbound(_)) => {
                self.ledger.remove(local);
                Response::Unbound(Binding { binding: local })
            }
            (Ask::Timelines, Response::Timelines(rows)) => Response::Timelines(rows),
            _ => {
                self.refuse(app, session, id, host_gone());
                return self.give_up(now, "the host has answered something else");
            }
        };
        self.answer(app, session, id, &response);
    }

    fn upstream_event(&mut self, event: Event) {
        let upstream = match &event {
            Event::Quality { binding, .. }
            | Event::Moved { binding, .. }
            | Event::Disrupted { binding } => *binding,
            // The session itself reports this.
            Event::Closing { .. } => return,
        };
        let Some((binding, held)) = self.ledger.by_upstream(upstream) else { return };
        let event = match event {
            Event::Quality { met, achieved, .. } => {
                held.met = met;
                Event::Quality { binding, met, achieved }
            }
            Event::Moved { place, .. } => Event::Moved { binding, place },
            _ => Event::Disrupted { binding },
        };
        let app = held.app;
        self.tell(app, &event);
    }

    fn tell(&mut self, app: u64, event: &Event) {
        let Some(entry) = self.apps.get_mut(&app) else { return };
        let Some(session) = entry.server.session() else { return };
        if let Err(over) = entry.server.send_event(session, event) {
            self.close(app, over);
        }
    }

    /// Records that a bind got an answer, or never will.
    fn made(&mut self, app: u64, ask: &Ask) {
        if let (Ask::Bind(_), Some(entry)) = (ask, self.apps.get_mut(&app)) {
            entry.making = entry.making.saturating_sub(1);
        }
    }
}

fn no_such_binding() -> Problem {
    let next_step = "name one that this connection has made and not ended";
    problem(ProblemCode::NotFound, "there is no such binding", next_step)
}

fn host_gone() -> Problem {
    let next_step =
        "ask again; if it stays so, look whether timevisord runs and this VM has a channel";
    problem(ProblemCode::Unavailable, "no session with the host is open", next_step)
}
