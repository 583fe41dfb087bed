//! What of a changed file can be taken over while the daemon runs.

use super::Config;

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
        // Clients are bound to them.
        keep("[[timeline]]", config.timelines == self.timelines);
        config.timelines.clone_from(&self.timelines);
        // Under the directory in force.
        config.complete();
        let tables = [
            ("[clock]", config.clock == self.clock),
            ("[[reference]]", config.references == self.references),
            ("[guests]", config.guests == self.guests),
            ("[introspection]", config.introspection == self.introspection),
            ("[server]", config.server == self.server),
        ];
        let changed = tables.into_iter().filter(|(_, same)| !same).map(|(table, _)| table);
        Successor { changed: changed.collect(), config, restart }
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
            "run_directory = \"/run/other\"\ncounter = \"tsc\"\n[clock]\nvalidity = \"20s\"\npublish_interval = \"2s\"\n\
             stale_after = \"90s\"\n[oscillator]\nwander = \"ocxo\"\n[[timeline]]\nname = \"a\"\n[server]\nstratum = 3\n",
        );
        let Successor { config, changed, restart } = before.successor(&new);
        assert_eq!(
            restart,
            [
                "run_directory",
                "counter",
                "[oscillator]",
                "clock.publish_interval",
                "clock.validity",
                "[[timeline]]"
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
}
