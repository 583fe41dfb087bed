use std::collections::BTreeMap;

use super::*;

fn error(text: &str) -> String {
    format!("{:#}", Config::parse(text).unwrap_err())
}

#[test]
fn the_packaged_file_is_valid_and_states_the_defaults() {
    let packaged = Config::parse(include_str!("../../../packaging/timevisord.toml")).unwrap();
    assert_eq!(format!("{packaged:?}"), format!("{:?}", Config::default()));
}

/// With all keys of the packaged file, also those in its comments.
#[test]
fn a_damaged_file_is_refused_or_means_something() {
    let packaged = include_str!("../../../packaging/timevisord.toml");
    let references = commented_references().join("[[reference]]\n");
    let whole = format!("{packaged}\n{references}");
    let mut refused = 0;
    crate::mutation::each(whole.as_bytes(), 2000, |bytes| {
        match Config::parse(&String::from_utf8_lossy(bytes)) {
            Ok(config) => drop(config.parameters()),
            Err(error) => {
                refused += 1;
                assert!(format!("{error:#}").len() > 10, "{error:#}");
            }
        }
    });
    assert!(refused > 200, "{refused} of 2000");
}

/// The references in the packaged file's comments, without keys that have no default.
fn commented_references() -> Vec<String> {
    let packaged = include_str!("../../../packaging/timevisord.toml");
    let mut tables: Vec<String> = Vec::new();
    for line in packaged.lines() {
        // The examples end where the next table begins.
        if line == "[server]" && !tables.is_empty() {
            break;
        }
        let line = line.strip_prefix("# ").unwrap_or("");
        if line == "[[reference]]" {
            tables.push(String::new());
        }
        // Prose, and keys of other tables, are not keys of a reference.
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if let Some(table) = tables.last_mut()
            && (line.starts_with("[[") || is_key && key != "time_type")
        {
            *table += &format!("{line}\n");
        }
    }
    tables
}

#[test]
fn the_packaged_references_state_the_defaults() {
    let tables = commented_references();
    assert_eq!(tables.len(), 8, "{tables:?}");
    let parse = |text: &str| {
        let found: Vec<ReferenceConfig> =
            toml::from_str::<BTreeMap<String, Vec<ReferenceConfig>>>(text)
                .unwrap_or_else(|e| panic!("{text}: {e}"))
                .remove("reference")
                .unwrap();
        format!("{found:?}")
    };
    let mut kinds = std::collections::BTreeSet::new();
    for table in tables {
        // A table reduced to its name must parse to the same value.
        let named = |line: &&str| {
            ["[[", "type", "cluster", "address = \"ntp", "pool"].iter().any(|k| line.starts_with(k))
        };
        let bare: String = table.lines().filter(named).map(|line| format!("{line}\n")).collect();
        assert_eq!(parse(&table), parse(&bare));
        let cluster = "[[cluster]]\nname = \"lab\"\nseeds = [\"192.0.2.1\"]\n";
        Config::parse(&format!("{table}{cluster}")).unwrap();
        kinds.extend(table.lines().find(|line| line.starts_with("type")).map(str::to_owned));
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

#[test]
fn a_pool_becomes_its_members() {
    let text = "[[reference]]\ntype = \"ntp\"\npool = \"pool.example\"\nservers = 3\n";
    let config = Config::parse(text).unwrap();
    let names: Vec<_> = config.references.iter().map(ReferenceConfig::name).collect();
    assert_eq!(names, ["pool.example#1", "pool.example#2", "pool.example#3"]);
    config.validate().unwrap();
    assert!(error(&format!("{text}address = \"a\"")).contains("not both"));
    assert!(error(&text.repeat(2)).contains("twice"));
    assert!(error(&text.replace('3', "17")).contains("1 to 16"));
    assert!(error(&format!("{text}nts = true")).contains("nts needs a server's name"));
    assert!(error(&format!("{text}max_packets_per_hour = 3")).contains("packets_per_hour"));
}

#[test]
fn one_lost_poll_is_not_stale() {
    let seconds = |references: &[&str]| {
        let tables: String =
            references.iter().map(|r| format!("[[reference]]\ntype = \"ntp\"\n{r}\n")).collect();
        Config::parse(&tables).unwrap().parameters().stale_after
    };
    let (own, public) = ("address = \"10.0.0.1\"", "address = \"192.0.2.1\"");
    assert_eq!(seconds(&[own]), Duration::from_secs(80));
    assert_eq!(seconds(&[public]), Duration::from_secs(192));
    assert_eq!(seconds(&[own, public]), Duration::from_secs(80));
    assert_eq!(seconds(&["pool = \"p\""]), Duration::from_secs(192));
}

#[test]
fn steering_by_what_is_read_from_the_steered_clock_is_refused() {
    let loops = ["type = \"system\"", "type = \"chrony\"", "type = \"ptp\"\ndevice = \"realtime\""];
    for reference in loops {
        let text = format!("[clock]\ndiscipline = true\n[[reference]]\n{reference}");
        assert!(error(&text).contains("a loop"), "{text}");
    }
    assert!(error("[clock]\ndiscipline = true").contains("reference system reads"));
    let ntp = "[clock]\ndiscipline = true\n[[reference]]\ntype = \"ntp\"\naddress = \"a\"";
    Config::parse(ntp).unwrap();
    assert!(error("[clock]\nmax_slew_ppm = 0").contains("max_slew_ppm"));
    assert!(error("[clock]\nstep_threshold = \"1us\"").contains("step_threshold"));
}

#[test]
fn local_references_are_checked() {
    let of = |lines: &str| error(&format!("[[reference]]\n{lines}"));
    assert!(of("type = \"phc\"\ndevice = \"ptp0\"").contains("absolute path"));
    assert!(of("type = \"phc\"\npoll = \"1ms\"").contains("from 10ms to 1h"));
    assert!(of("type = \"phc\"\naccurracy = \"1us\"").contains("accurracy"));
    assert!(of("type = \"phc\"\ntimescale = \"gps\"").contains("gps"));
    assert!(of("type = \"ptp\"\nmax_age = \"100ms\"").contains("max_age"));
    assert!(of("type = \"ptp\"\ntransport_specific = 16").contains("0 to 15"));
    assert!(of("type = \"chrony\"\naddress = \"localhost\"").contains("127.0.0.1:323"));
    assert!(of("type = \"vmclock\"\ndevice = \"x\"").contains("absolute path"));
    Config::parse("[[reference]]\ntype = \"chrony\"\naddress = \"[::1]:323\"").unwrap();
}

#[test]
fn unknown_keys_are_refused_by_name() {
    assert!(error("countr = \"tsc\"").contains("countr"));
    assert!(error("[clock]\nvalidty = \"10s\"").contains("validty"));
    assert!(
        error("[[reference]]\ntype = \"ntp\"\naddress = \"x\"\niburst = true").contains("iburst")
    );
}

#[test]
fn values_out_of_range_say_what_would_be_right() {
    assert!(error("reference = []").contains("at least one"));
    assert!(error("[clock]\nvalidity = \"2s\"").contains("3 publish intervals"));
    assert!(error("[oscillator]\nmeasured_rate_ppm = 200").contains("must not exceed"));
    // Better than the 3 ppm that prove an ordinary crystal's rate.
    Config::parse("[oscillator]\nmeasured_rate_ppm = 1\nwander = \"tcxo\"").unwrap();
    assert!(error("[clock]\nstale_after = \"0s\"").contains("stale_after"));
    assert!(error("[clock]\nmeasured_rate_ppm = 15").contains("oscillator.measured_rate_ppm"));
    for wander in ["0", "-3e-8", "1e-5", "nan", "\"quartz\""] {
        let text = error(&format!("[oscillator]\nwander = {wander}"));
        assert!(text.contains("wander") && text.contains("crystal"), "{wander}: {text}");
    }
    assert!(error("[[reference]]\ntype = \"ntp\"\naddress = \"a\"\nburst = 99").contains("16"));
    let twice = "[[reference]]\ntype = \"ntp\"\naddress = \"a\"\n";
    assert!(error(&twice.repeat(2)).contains("twice"));
    let ntp = "[[reference]]\ntype = \"ntp\"\naddress = \"a\"\n";
    assert!(error(&format!("{ntp}ca_file = \"/a.pem\"")).contains("nts = true"));
    assert!(error(&format!("{ntp}nts_ke_port = 4461")).contains("nts = true"));
    assert!(error(&format!("{ntp}nts = true\nnts_ke_port = 0")).contains("nts_ke_port"));
    assert!(error("[guests.vm.\"../x\"]\ntime_type = \"tai\"").contains("../x"));
    let reserve = "[[guests.vm.web.reserve]]\nbudget = \"28ms\"\n";
    assert!(error(&format!("{reserve}period = \"20ms\"")).contains("[[guests.vm.web.reserve]]"));
    assert!(error(&format!("{reserve}period = \"50ms\"\n").repeat(2)).contains("twice"));
    assert!(error(&format!("{reserve}period = \"50ms\"\ncpu = 1")).contains("cpu"));
    assert!(error("[guests]\ndiscover_interval = \"0s\"").contains("discover_interval"));
    assert!(error("[[reference]]\ntype = \"ntp\"\naddress = \"\"").contains("address"));
}

#[test]
fn timelines_follow_references_by_name_and_share_clocks() {
    let text = "[[reference]]\ntype = \"ntp\"\naddress = \"a\"\n[[reference]]\ntype = \"ntp\"\naddress = \"b\"\n";
    let table = |keys: &str| format!("{text}[[timeline]]\nname = \"plant\"\n{keys}");
    let config = Config::parse(&format!(
        "{}[[timeline]]\nname = \"other\"\nepoch = \"utc\"\nreferences = [\"b\", \"b\"]\n[[timeline]]\nname = \"all\"\n",
        table("references = [\"b\"]\n")
    ));
    let (setup, clocks) = config.unwrap().timeline_setup().unwrap();
    assert_eq!((setup.timelines.len(), clocks), (3, vec![vec![1]]));
    for (keys, wanted) in [
        ("references = [\"c\"]\n", "there are: a, b"),
        ("references = []\n", "follows no references"),
        ("epoch = \"local\"\nreferences = [\"a\"]\n", "a local timeline follows no references"),
        ("master = \"vm:web\"\n", "only a local timeline has a master"),
        ("tenants = [\"web\"]\n", "write uid:1000"),
        ("tenants = []\n", "visible to nobody"),
        ("colour = 1\n", "unknown field"),
    ] {
        let error = error(&table(keys));
        assert!(
            error.contains(wanted) && error.contains("plant") || keys.contains("colour"),
            "{error}"
        );
    }
    assert!(error(&text.replace("\"a\"", "\"b\"")).contains("twice"));
    assert!(error("[[timeline]]\nname = \"utc\"\n").contains("always exists"));
    assert!(error("[[timeline]]\nname = \"a b\"\n").contains("a b"));
}

#[test]
fn reservations_are_those_of_all_vms() {
    let one = |vm: &str| {
        format!("[[guests.vm.{vm}.reserve]]\nbudget = \"28ms\"\nperiod = \"50ms\"\nalone = true\n")
    };
    let config = Config::parse(&format!("{}{}", one("web"), one("db"))).unwrap();
    let all = config.reservations();
    let names: Vec<_> = all.iter().map(|one| one.vm.as_str()).collect();
    assert_eq!(names, ["db", "web"]);
    assert_eq!((all[0].budget_ns, all[0].period_ns, all[0].alone), (28_000_000, 50_000_000, true));
}
