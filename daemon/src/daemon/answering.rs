//! Which part of the daemon answers which request.

use timevisor_protocols::control::{ErrorCode, Request, Response};

use super::Daemon;
use crate::ages::Ages;
use crate::report;
use crate::vms::Vms;

impl Daemon {
    pub(super) fn client_ready(&mut self, slot: usize) {
        for request in self.control.read(slot) {
            let response = self.respond(&request);
            if request.question().is_none() {
                self.look_for_audit(true);
            }
            self.control.answer(slot, &response);
        }
    }

    /// Answers one question of the read-only socket's thread. It asks each at most a few times a
    /// second, however many clients it has; the next one comes with the next turn of the loop.
    pub(super) fn observers_ready(&mut self) {
        if let Some(question) = self.observers.asked() {
            let response = self.respond(&question.request());
            self.observers.tell(question, response);
        }
    }

    pub(super) fn respond(&mut self, request: &Request) -> Response {
        match request {
            Request::Status => {
                let discipline = self.discipline.as_ref();
                report::status(
                    &self.clock,
                    &self.references,
                    self.vms.len(),
                    discipline,
                    self.report_server(),
                    self.ages.as_ref().map(Ages::report),
                    self.started,
                )
            }
            Request::Now => report::now(&self.clock),
            Request::Sources => report::sources(&self.clock, &self.references),
            Request::Exchanges => Response::Exchanges(self.clock.exchanges()),
            Request::Tracking => report::tracking(&self.clock, &self.references, &self.config),
            Request::Clusters => Response::Clusters(report::clusters(
                &self.config,
                &self.clock,
                &self.references,
                &self.timelines.clusters,
            )),
            Request::Clients(query) => match &self.server {
                Some(server) => Response::Clients(server.clients(query.after)),
                None => report::error_response(
                    ErrorCode::Unsupported,
                    "there is no NTP server here",
                    "set server.listen in the configuration and reload",
                ),
            },
            Request::SourceAdd(_)
            | Request::SourceRemove(_)
            | Request::SourceBurst(_)
            | Request::SourceOffline(_)
            | Request::SourceOnline(_)
            | Request::Reload => self.change(request),
            Request::Timelines => {
                Response::Timelines(self.timelines.report(&self.clock, &self.vms))
            }
            Request::VmList => self.vms.list(&self.notices),
            Request::VmAdd(add) => {
                let admit = |vms: &Vms, name: &str| self.reservations.admit(name, vms);
                self.vms.add(add, &self.clock, admit)
            }
            Request::VmRemove(remove) => self.vms.remove(&remove.name),
            Request::VmMigrate(migrate) => self.vms.migrate(migrate, &mut self.notices),
            Request::VmNotice(notice) => self.vms.notice(notice, &mut self.notices),
            Request::VmPrepare(prepare) => self.vms.prepare(prepare, &self.clock),
            Request::ReserveApply(apply) => {
                let answer = self.reservations.apply(apply, &self.vms);
                if let Response::Error(_) = answer {
                    self.vms.ask_vcpus(&apply.vm);
                }
                answer
            }
            Request::ReserveMove(asked) => self.reservations.relocate(asked, &self.vms),
            Request::ReserveRelease(release) => self.reservations.release(release),
            Request::ReserveList => self.reservations.list(),
            Request::ReserveMissed(asked) => self.reservations.missed(asked),
            Request::ReserveCores(asked) => {
                let answer = self.reservations.cores(asked, &self.vms);
                if let (Response::Error(_), Some(vm)) = (&answer, &asked.vm) {
                    self.vms.ask_vcpus(vm);
                }
                answer
            }
            Request::IntrospectAttach(asked) => self.introspection.attach(asked, &mut self.vms),
            Request::IntrospectDetach(asked) => {
                self.introspection.detach(asked, &mut self.vms, &mut self.reservations)
            }
            Request::IntrospectList => self.introspection.list(),
            Request::IntrospectTrace(asked) => self.introspection.trace(asked, &self.clock),
            Request::IntrospectPlugins => self.introspection.plugins(),
        }
    }
}
