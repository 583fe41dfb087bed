//! One reference with everything that is known of it: what chronyc tells in `sources`,
//! `sourcestats`, `ntpdata`, `selectdata` and `authdata`.

use timevisor_protocols::control::{Mark, NtpData, NtsData, Selection, Source, Statistics};

use super::polling::polls;
use super::table::{beside_ours, nanoseconds, seconds, shared};

pub fn text(source: &Source) -> String {
    let reference = &source.reference;
    let mut out = format!("{}\n", reference.name);
    let mut line = |label: &str, text: String| out += &format!("  {label:<16} {text}\n");
    line("kind", reference.kind.clone());
    line("state", format!("{}: {}", reference.status, reference.detail));
    line("selection", selection(&source.selection));
    if !reference.shares_vote_with.is_empty() {
        line("vote", shared(&reference.shares_vote_with));
    }
    let reach = format!(
        "{} (octal: the last 8 requests), {} accepted",
        reference.reach, reference.accepted
    );
    line("reach", reach);
    if !reference.rejected.is_empty() {
        let list = reference.rejected.iter().map(|(reason, count)| format!("{reason} {count}"));
        line("rejected", list.collect::<Vec<_>>().join(", "));
    }
    match &reference.polling {
        Some(polling) => line("poll", polls(reference.poll_s, polling)),
        None => line("poll", format!("every {}", seconds(reference.poll_s))),
    }
    if let Some(rtt) = reference.rtt_ns {
        line("round trip", nanoseconds(rtt));
    }
    match &source.statistics {
        Some(said) => statistics(said, &mut line),
        None => line("samples", "none yet".to_owned()),
    }
    if let Some(ntp) = &source.ntp {
        ntp_data(ntp, &mut line);
    }
    if let Some(nts) = &source.nts {
        nts_data(nts, &mut line);
    }
    out
}

fn selection(selection: &Selection) -> String {
    let word = match selection.mark {
        Mark::Selected => "weighs most",
        Mark::Combined => "counts",
        Mark::Rebuilding => {
            "its bounds count, its estimate does not: it contradicted itself lately"
        }
        Mark::Falseticker => "outvoted by the others",
        Mark::Unusable => "has said nothing that can be used",
    };
    let weight = selection.weight.map(|weight| format!(", weight {weight:.2}")).unwrap_or_default();
    format!("{} {word}{weight}", selection.mark.character())
}

fn statistics(said: &Statistics, line: &mut impl FnMut(&str, String)) {
    line("samples", format!("{}, the last {} ago", said.samples, seconds(said.last_sample_s)));
    line("offset", format!("{} from our clock", nanoseconds(said.offset_ns)));
    line("sigma", nanoseconds(said.estimated_error_ns));
    line("bounds", format!("{} beside our clock", beside_ours(said.earliest_ns, said.latest_ns)));
    line("frequency", format!("{:+.4} ppm against our clock", said.frequency_ppm));
    line("skew", format!("within {:.3} ppm", said.skew_ppm));
    line("contradictions", said.contradictions.to_string());
}

fn ntp_data(ntp: &NtpData, line: &mut impl FnMut(&str, String)) {
    let unknown = || "unknown".to_owned();
    let local = ntp.local.as_ref().map(|local| format!(" from {local}")).unwrap_or_default();
    line("address", format!("{}{local}", ntp.remote.clone().unwrap_or_else(unknown)));
    if let Some(age) = ntp.answered_s {
        line("last answer", format!("{} ago, NTP version {}", seconds(age), ntp.version));
    }
    line("leap", ntp.leap.clone());
    line("stratum", ntp.stratum.to_string());
    line("reference id", ntp.reference_id.clone());
    if let Some(time) = ntp.reference_time_unix_s {
        line("reference time", format!("{time:.6} (UTC seconds since 1970)"));
    }
    line("root delay", nanoseconds(ntp.root_delay_ns));
    line("root dispersion", nanoseconds(ntp.root_dispersion_ns));
    let how = if ntp.precise { ", in nanoseconds (precise bounds)" } else { "" };
    line("server's error", format!("{}{how}", nanoseconds(ntp.error_ns)));
    line("precision", format!("2^{} s", ntp.precision));
    line("response time", nanoseconds(ntp.response_ns));
    line("interleaved", if ntp.interleaved { "yes" } else { "no" }.to_owned());
    line("stamps", format!("request {}, answer {}", ntp.stamps[0], ntp.stamps[1]));
    line(
        "requests",
        format!("{} sent, {} lost, {} kisses of death", ntp.sent, ntp.lost, ntp.kisses),
    );
}

fn nts_data(nts: &NtsData, line: &mut impl FnMut(&str, String)) {
    line("NTS server", nts.server.clone());
    let algorithm = nts.algorithm.clone().unwrap_or_else(|| "no keys".to_owned());
    line("NTS keys", format!("{algorithm}, {} cookies left", nts.cookies));
    let last = nts.established_s.map(|age| format!(", the last {} ago", seconds(age)));
    let last = last.unwrap_or_default();
    line("NTS exchanges", format!("{} begun, {} succeeded{last}", nts.exchanges, nts.established));
    let refused: u64 = nts.refused.values().sum();
    line("NTS answers", format!("{} authentic, {refused} refused", nts.authenticated));
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{SELECTION, STATISTICS, source};
    use super::*;

    #[test]
    fn everything_has_its_line() {
        let ntp = r#","ntp":{"remote":"192.0.2.1:123","local":"192.0.2.9","answered_s":1.2,"version":4,"leap":"normal",
            "stratum":2,"reference_id":"192.0.2.7","reference_time_unix_s":1.5,"precision":-24,"root_delay_ns":30000,
            "root_dispersion_ns":15259,"error_ns":5000,"response_ns":9000,"interleaved":false,"precise":true,
            "stamps":["kernel","daemon"],"sent":14,"lost":1,"kisses":0}"#;
        let nts = r#","nts":{"server":"ntp.example:4460","algorithm":"AEAD_AES_SIV_CMAC_256","cookies":7,
            "established_s":100.0,"exchanges":2,"established":1,"authenticated":12,"refused":{"nts_nak":1}}"#;
        let said = text(&source(&[SELECTION, STATISTICS, ntp, nts].concat()));
        for wanted in [
            "ntp.example\n",
            "selection        * weighs most, weight 0.75\n",
            "bounds           -21.000 us +25.500 us beside our clock\n",
            "frequency        -0.0120 ppm against our clock\n",
            "address          192.0.2.1:123 from 192.0.2.9\n",
            "server's error   5.000 us, in nanoseconds (precise bounds)\n",
            "stamps           request kernel, answer daemon\n",
            "NTS keys         AEAD_AES_SIV_CMAC_256, 7 cookies left\n",
            "NTS exchanges    2 begun, 1 succeeded, the last 100s ago\n",
            "NTS answers      12 authentic, 1 refused\n",
        ] {
            assert!(said.contains(wanted), "{wanted:?} in\n{said}");
        }
    }

    #[test]
    fn a_reference_without_answers_says_so() {
        let said = text(&source(r#","selection":{"mark":"unusable"}"#));
        assert!(said.contains("samples          none yet\n"), "{said}");
        assert!(said.contains("selection        ? has said nothing"), "{said}");
    }
}
