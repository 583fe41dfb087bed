//! What of a changed file can be taken over while the daemon runs.

use timevisor_protocols::control::TimeType;

use super::{ClusterConfig, Config};

/// A configuration to go on with.
#[derive(Debug)]
pub struct Successor {
    /// The new configuration, with the former values where these take a restart.
    pub config: Config,
    /// What has changed and is taken over, by table.
    pub changed: Vec<&'static str>,
    /// What has changed and takes a restart, by key or table.
    pub restart: Vec<&'static str>,
}

impl Config {
    /// Compares the configuration in force with a new one.
    pub fn successor(&self, new: &Self) -> Successor {
        let mut config = new.clone();
        let mut restart = Vec::new();
        let mut keep = |key, same: bool| {
            if !same {
                restart.push(key);
            }
        };
        // The pages, sockets and locks are there.
        keep("run_directory", config.run_directory == self.run_directory);
        config.run_directory.clone_from(&self.run_directory);
        keep("state_directory", config.state_directory == self.state_directory);
        config.state_directory.clone_from(&self.state_directory);
        // Everything known is known on this counter, under this assumption.
        keep("counter", config.counter == self.counter);
        config.counter = self.counter;
        keep("[oscillator]", config.oscillator == self.oscillator);
        config.oscillator = self.oscillator.clone();
        // Readers were promised these.
        keep(
            "clock.publish_interval",
            config.clock.publish_interval == self.clock.publish_interval,
        );
        config.clock.publish_interval = self.clock.publish_interval;
        keep("clock.validity", config.clock.validity == self.clock.validity);
        config.clock.validity = self.clock.validity;
        // The log is being written.
        keep("[audit]", config.audit == self.audit);
        config.audit = self.audit.clone();
        // Clients are bound to them.
        keep("[[timeline]]", config.timelines == self.timelines);
        config.timelines.clone_from(&self.timelines);
        // Clients have its files mapped.
        keep("[clockbound]", config.clockbound == self.clockbound);
        config.clockbound.clone_from(&self.clockbound);
        // So they are to those of clusters, whose hosts know this one by its port.
        let with_timeline = |config: &Self| -> Vec<ClusterConfig> {
            config.clusters.iter().filter(|c| c.timeline.is_some()).cloned().collect()
        };
        let own = with_timeline(self);
        let same = with_timeline(&config) == own;
        keep("[[cluster]]", same);
        if !same {
            config.clusters.clone_from(&self.clusters);
        }
        let listens = own.is_empty() || config.server.listen == self.server.listen;
        keep("server.listen", listens);
        if !listens {
            config.server.listen.clone_from(&self.server.listen);
        }
        // Under the directory in force.
        config.complete();
        // Every field is named, so that a new one is not forgotten here.
        let Self {
            run_directory: _,
            state_directory: _,
            counter: _,
            oscillator: _,
            timelines: _,
            audit: _,
            clockbound: _,
            clock,
            references,
            clusters,
            guests,
            introspection,
            server,
        } = &config;
        let tables = [
            ("[clock]", *clock == self.clock),
            ("[[reference]]", *references == self.references),
            ("[[cluster]]", *clusters == self.clusters),
            ("[guests]", *guests == self.guests),
            ("[introspection]", *introspection == self.introspection),
            ("[server]", *server == self.server),
        ];
        let changed = tables.into_iter().filter(|(_, same)| !same).map(|(table, _)| table);
        Successor { changed: changed.collect(), config, restart }
    }

    /// Whether a VM that runs with a page of this type would start with another one under `new`, and
    /// not under this configuration.
    pub fn retypes(&self, new: &Self, vm: &str, page: TimeType) -> bool {
        let wanted = new.time_type_of(vm);
        wanted != self.time_type_of(vm) && wanted != page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    #[test]
    fn what_takes_a_restart_is_named_and_stays() {
        let before = parsed("");
        let new = parsed(
            "run_directory = \"/run/other\"\nstate_directory = \"/var/other\"\ncounter = \"tsc\"\n[clock]\nvalidity = \"20s\"\npublish_interval = \"2s\"\n\
             stale_after = \"90s\"\n[oscillator]\nwander = \"ocxo\"\n[[timeline]]\nname = \"a\"\n[server]\nstratum = 3\n[audit]\nenabled = true\n\
             [clockbound]\nenabled = true\n",
        );
        let Successor { config, changed, restart } = before.successor(&new);
        assert_eq!(
            restart,
            [
                "run_directory",
                "state_directory",
                "counter",
                "[oscillator]",
                "clock.publish_interval",
                "clock.validity",
                "[audit]",
                "[[timeline]]",
                "[clockbound]"
            ]
        );
        assert_eq!(changed, ["[clock]", "[server]"]);
        let taken = Config {
            clock: crate::config::ClockConfig {
                stale_after: new.clock.stale_after,
                ..before.clock.clone()
            },
            server: new.server.clone(),
            ..before
        };
        assert_eq!(config, taken);
    }

    #[test]
    fn the_same_file_changes_nothing() {
        let text = "[[reference]]\ntype = \"ptp\"\n[[reference]]\ntype = \"ntp\"\npool = \"p\"\n[[guests.vm.a.reserve]]\n\
                    vcpu = 0\nbudget = \"1ms\"\nperiod = \"10ms\"\n";
        let Successor { config, changed, restart } = parsed(text).successor(&parsed(text));
        assert_eq!((changed.len(), restart.len(), &config), (0, 0, &parsed(text)));
    }

    #[test]
    fn a_clusters_own_timeline_stays_as_it_is() {
        let text = |port: u16, timeline: &str, poll: &str| {
            parsed(&format!(
                "[server]\nlisten = [\"10.0.0.1:{port}\"]\n[[cluster]]\nname = \"lab\"\n\
                 seeds = [\"10.0.0.1\"]\n{timeline}poll = \"{poll}\"\n"
            ))
        };
        let own = "timeline = \"cell\"\n";
        let before = text(123, own, "4s");
        let found = before.successor(&text(123, own, "2s"));
        assert_eq!((found.restart, &found.config), (vec!["[[cluster]]"], &before));
        let found = before.successor(&text(1123, own, "4s"));
        assert_eq!((found.restart, &found.config), (vec!["server.listen"], &before));
        assert_eq!(before.successor(&text(123, "", "4s")).restart, ["[[cluster]]"]);
        // Without one, both are taken over.
        let found = text(123, "", "4s").successor(&text(1123, "", "2s"));
        assert!(found.restart.is_empty(), "{:?}", found.restart);
    }

    /// A file in which one key differs: it is in force, or a restart is asked for.
    #[test]
    fn every_key_is_taken_over_or_named() {
        let before = parsed(SERVER);
        for (differs, changed, restart) in [
            ("[clock]\nleap_table = \"/x\"", Some("[clock]"), None),
            ("[clock]\ntai_offset = 37", Some("[clock]"), None),
            ("[clock]\nstale_after = \"90s\"", Some("[clock]"), None),
            ("[clock]\nrequired_bound = \"1ms\"", Some("[clock]"), None),
            ("[clock]\ndiscipline = true", Some("[clock]"), None),
            ("[clock]\nmax_slew_ppm = 100", Some("[clock]"), None),
            ("[clock]\nstep_threshold = \"1s\"", Some("[clock]"), None),
            ("[clock]\nstep_limit = 1", Some("[clock]"), None),
            ("[clock]\npublish_interval = \"2s\"", None, Some("clock.publish_interval")),
            ("[clock]\nvalidity = \"20s\"", None, Some("clock.validity")),
            ("[guests]\ndiscover = false", Some("[guests]"), None),
            ("[guests]\ndiscover = \"all\"", Some("[guests]"), None),
            ("[guests.vm.a]\nuser = \"4001\"", Some("[guests]"), None),
            ("[guests]\ndiscover_interval = \"1s\"", Some("[guests]"), None),
            ("[guests]\ntime_type = \"utc\"", Some("[guests]"), None),
            ("[guests.vm.a]\ntime_type = \"utc\"", Some("[guests]"), None),
            (
                "[[guests.vm.a.reserve]]\nbudget = \"1ms\"\nperiod = \"10ms\"",
                Some("[guests]"),
                None,
            ),
            ("[introspection]\nkvm = \"port\"", Some("[introspection]"), None),
            ("[introspection]\nplugins = \"/a\"", Some("[introspection]"), None),
            ("[server]\nstratum = 3", Some("[server]"), None),
            ("[oscillator]\nwander = \"ocxo\"", None, Some("[oscillator]")),
            ("[[timeline]]\nname = \"a\"", None, Some("[[timeline]]")),
        ] {
            let new = parsed(&format!("{SERVER}{differs}\n"));
            let found = before.successor(&new);
            assert_eq!(found.changed, Vec::from_iter(changed), "{differs}");
            assert_eq!(found.restart, Vec::from_iter(restart), "{differs}");
            assert_eq!(&found.config, if restart.is_none() { &new } else { &before }, "{differs}");
        }
    }

    /// Without a clock that it reads itself, which cannot be steered.
    const SERVER: &str = "[[reference]]\ntype = \"ntp\"\naddress = \"192.0.2.1\"\n";

    /// Each key of a reservation makes another configuration of it.
    #[test]
    fn every_key_of_a_reservation_counts() {
        let table = |keys: &str| {
            parsed(&format!("[[guests.vm.a.reserve]]\nbudget = \"1ms\"\nperiod = \"10ms\"\n{keys}"))
        };
        let before = table("");
        for key in [
            "vcpu = 1",
            "at_most = \"2ms\"",
            "deadline = \"5ms\"",
            "promise = \"global\"",
            "core = 1",
            "alone = true",
        ] {
            let Successor { config, changed, restart } = before.successor(&table(key));
            assert_eq!((changed, restart), (vec!["[guests]"], vec![]), "{key}");
            assert_ne!(config.reservations(), before.reservations(), "{key}");
        }
    }

    #[test]
    fn a_running_vm_whose_page_would_be_of_another_type_is_told_apart() {
        let before = parsed("[guests.vm.own]\ntime_type = \"tai\"");
        let new = parsed("[guests]\ntime_type = \"utc\"\n[guests.vm.own]\ntime_type = \"tai\"");
        assert!(before.retypes(&new, "other", TimeType::Tai));
        assert!(!before.retypes(&new, "own", TimeType::Tai), "it has its own key");
        assert!(!before.retypes(&new, "other", TimeType::Utc), "added by command as what it gets");
        assert!(!before.retypes(&before, "other", TimeType::Utc), "not because of this change");
    }
}
