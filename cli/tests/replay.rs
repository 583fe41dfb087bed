//! `timevisor replay` as a program: what it prints, writes and refuses.

#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 1_262_304_000 * SECOND;

/// A counter 20 ppm fast, 50 us each way, an exchange every 16 s for `seconds`; with the truth
/// beside it if asked.
fn write_trace(folder: &Path, seconds: i64, truth: bool) -> PathBuf {
    let counter = |ns: i64| ns + ns / 50_000;
    let mut rows =
        "ta_counter_ns,tb_ns,te_ns,tf_counter_ns,true_time_ns_at_ta,true_time_ns_at_tf\n"
            .to_owned();
    for sent in (0..seconds * SECOND).step_by(16_000_000_000) {
        let (served, back) = (sent + 50_000, sent + 100_000);
        let served = START + served;
        let (ta, tf) = (counter(sent), counter(back));
        rows += &format!("{ta},{served},{served},{tf},{},{}\n", START + sent, START + back);
    }
    let path = folder.join("by_hand_s1.csv");
    fs::write(&path, rows).unwrap();
    if truth {
        let line = |s: i64| format!("{s},{}\n", counter(s * SECOND) - s * SECOND);
        let lines: String = (0..=seconds).map(line).collect();
        let text = "t_s,counter_minus_true_ns\n".to_owned() + &lines;
        fs::write(folder.join("by_hand_s1.truth.csv"), text).unwrap();
    }
    path
}

fn replay(trace: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_timevisor");
    Command::new(program).arg("replay").arg(trace).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refusal(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn json_has_exactly_the_documented_fields() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path(), 1600, true);
    for estimator in
        ["default", "shifted-exponential", "radclock", "radclock-poor", "radclock-excellent"]
    {
        let output = replay(&trace, &["--json", "--skip", "800", "--estimator", estimator]);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let mut keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let documented = [
            "contradictions",
            "coverage",
            "estimator",
            "halfwidth_median_us",
            "halfwidth_p99_us",
            "max_us",
            "mean_abs_us",
            "p99_us",
            "rms_us",
            "seconds",
            "trace",
        ];
        assert_eq!(keys, documented);
        assert_eq!((&json["trace"], &json["estimator"]), (&"by_hand_s1".into(), &estimator.into()));
        assert_eq!((&json["seconds"], &json["coverage"]), (&801.into(), &1.0.into()));
        assert_eq!(json["contradictions"], 0);
        assert!(json["rms_us"].as_f64().unwrap() < 5.0, "{json}");
        assert!(json["halfwidth_median_us"].as_f64().unwrap() >= 50.0, "{json}");
    }
}

#[test]
fn every_reading_goes_to_the_csv_in_whole_nanoseconds() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path(), 320, true);
    let path = folder.path().join("out.csv");
    let text = stdout(&replay(&trace, &["--skip", "5m", "--csv", path.to_str().unwrap()]));
    assert!(text.contains("readings      21, one a second"), "{text}");
    let lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "t_s,counter,earliest_ns,estimate_ns,latest_ns,true_ns,trusted");
    assert_eq!(lines.len(), 22);
    let first: Vec<i64> = lines[1].split(',').map(|field| field.parse().unwrap()).collect();
    let [second, counter, earliest, estimate, latest, truth, trusted] = first[..] else { panic!() };
    assert_eq!((second, counter, truth, trusted), (300, 300_006_000_000, START + 300 * SECOND, 1));
    assert!(earliest < truth && truth < latest && earliest <= estimate && estimate <= latest);
}

#[test]
fn without_a_truth_it_says_what_it_cannot_know() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path(), 320, false);
    let text = stdout(&replay(&trace, &["--skip", "60"]));
    assert!(text.contains("exchanges     20 used\n"), "{text}");
    assert!(
        text.contains("error         not known: there is no truth file; --truth names one"),
        "{text}"
    );
    assert!(text.contains("half-width    median "), "{text}");
    let json: Value =
        serde_json::from_str(&stdout(&replay(&trace, &["--skip", "60", "--json"]))).unwrap();
    assert!(json["rms_us"].is_null() && json["coverage"].is_null(), "{json}");
    assert!(json["halfwidth_p99_us"].is_number(), "{json}");
}

/// Recorded with `timevisor sources record --for 4m` on 30 November 2026 on the development machine (two
/// busy cores): a real chronyd over the loopback, asked every 2 s.
#[test]
fn a_trace_of_a_running_host_replays_and_is_drawn() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/host.csv");
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("host.svg");
    let options = ["--json", "--skip", "30", "--plot", picture.to_str().unwrap()];
    let json: Value = serde_json::from_str(&stdout(&replay(&recorded, &options))).unwrap();
    assert!(json["seconds"].as_u64().unwrap() > 180, "{json}");
    assert_eq!(json["contradictions"], 0, "{json}");
    let width = json["halfwidth_median_us"].as_f64().unwrap();
    assert!(width > 1.0 && width < 500.0, "{json}");
    let svg = fs::read_to_string(picture).unwrap();
    for part in ["<svg", "latest", "earliest", "exchanges", "offset from the estimate"] {
        assert!(svg.contains(part), "{part}");
    }
    assert!(!svg.contains("truth"), "this trace has none");
}

#[test]
fn refusals_say_where_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path(), 320, true);
    let short = refusal(&replay(&trace, &[]));
    assert!(short.contains("give a longer trace or a smaller --skip"), "{short}");
    let unknown = refusal(&replay(&trace, &["--estimator", "chrony"]));
    assert!(unknown.contains("there is no estimator `chrony`; there are default, "), "{unknown}");
    let absent = refusal(&replay(&folder.path().join("absent.csv"), &[]));
    assert!(absent.contains("cannot read") && absent.contains("absent.csv"), "{absent}");
    let text = fs::read_to_string(&trace).unwrap().replacen("\n16000320000,", "\n16000320000x,", 1);
    fs::write(&trace, text).unwrap();
    let wrong = refusal(&replay(&trace, &[]));
    assert!(
        wrong.contains("by_hand_s1.csv: line 3, column ta_counter_ns: `16000320000x`"),
        "{wrong}"
    );
}
