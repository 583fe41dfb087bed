//! The whole server over TCP, beside an impostor of timevisord.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use clap::Parser as _;
use timevisor_protocols::control::{Question, ServerCodec};

use super::Web;
use crate::options::Options;
use crate::sampler::Sampler;
use crate::testing;

/// Answers all questions at once, for ever.
fn impostor(directory: &Path, vms: usize) {
    let listener = UnixListener::bind(directory.join("observe")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let responses = testing::responses(vms);
                let encoded: Vec<_> =
                    responses.iter().map(|it| ServerCodec::encode(it).unwrap()).collect();
                while let Some(Ok(line)) = lines.next() {
                    let asked =
                        |question: &Question| line.contains(&format!("\"{}\"", question.name()));
                    let place = Question::OBSERVED.iter().position(asked).unwrap();
                    if stream.write_all(&encoded[place]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Starts a server of this directory; it ends with the test's process.
fn start(directory: &Path) -> SocketAddr {
    let directory = directory.to_owned();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let run_directory = directory.to_str().unwrap();
            let words = ["o", "--listen", "127.0.0.1:0", "--run-directory", run_directory];
            let options = Options::parse_from(words);
            let sampler = Sampler::start(&options.run_directory);
            let web = Web::bind(&options, None, sampler.observed()).await.unwrap();
            tell.send(web.addresses()[0]).unwrap();
            tokio::join!(web.serve(), sampler.run());
        });
    });
    told.recv().unwrap()
}

fn request(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost"))
}

/// Waits until timevisord's answers are there.
fn wait_up(address: SocketAddr) -> String {
    let up = (0..300).find_map(|_| {
        let page = get(address, "/metrics");
        if page.contains("\ntimevisor_up 1.0\n") {
            return Some(page);
        }
        std::thread::sleep(Duration::from_millis(50));
        None
    });
    up.expect("timevisor_up never becomes 1")
}

#[test]
fn metrics_pages_and_history_are_there_with_the_headers_that_keep_browsers_safe() {
    let folder = tempfile::tempdir().unwrap();
    impostor(folder.path(), 200);
    let address = start(folder.path());
    let metrics = wait_up(address);
    assert!(metrics.contains("timevisor_vms 200.0\n"));
    assert!(metrics.contains("timevisor_page_up 0.0\n"), "there is no page");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"));
    for path in ["/", "/app.js", "/style.css", "/uplot.js", "/history?seconds=60", "/nowhere"] {
        let answer = get(address, path);
        let status = if path == "/nowhere" { "404" } else { "200" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{path}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{path}");
    }
    let accept = "Accept: application/openmetrics-text";
    let open = request(address, &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}"));
    assert!(open.contains("# EOF\n"));
}

#[test]
fn nothing_is_written_and_no_other_name_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let address = start(folder.path());
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let answer = request(address, &format!("{method} / HTTP/1.1\r\nHost: localhost"));
        assert!(answer.starts_with("HTTP/1.1 405"), "{method}: {answer}");
    }
    let answer = request(address, "GET /metrics HTTP/1.1\r\nHost: evil.example");
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
    assert!(!answer.contains("timevisor_up"));
    let metrics = get(address, "/metrics");
    assert!(metrics.contains("timevisor_observe_requests_total{outcome=\"wrong_host\"} 1.0\n"));
    assert!(metrics.contains("timevisor_up 0.0\n"), "there is no timevisord");
}

#[test]
fn browsers_get_news_and_have_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    impostor(folder.path(), 2);
    let address = start(folder.path());
    wait_up(address);
    let watch = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        BufReader::new(stream).lines().map(Result::unwrap)
    };
    let mut lines = watch();
    assert!(lines.next().unwrap().starts_with("HTTP/1.1 200"));
    let events = |lines: &mut dyn Iterator<Item = String>, count: usize| -> Vec<String> {
        lines
            .filter_map(|line| line.strip_prefix("event: ").map(str::to_owned))
            .take(count)
            .collect()
    };
    // Everything at first, and then what changes: the clock, and nothing else of a host where nothing happens.
    assert_eq!(events(&mut lines, 8), crate::view::TOPICS);
    assert!(events(&mut lines, 3).contains(&"clock".to_owned()));
    let others: Vec<_> = (1..super::MOST_VIEWERS)
        .map(|_| {
            let mut lines = watch();
            assert!(lines.next().unwrap().starts_with("HTTP/1.1 200"));
            lines
        })
        .collect();
    assert!(watch().next().unwrap().starts_with("HTTP/1.1 503"));
    drop(others);
}

#[tokio::test]
async fn an_address_of_the_network_has_some_places_and_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let words = ["o", "--listen", "127.0.0.1:0", "--run-directory", directory];
    let options = Options::parse_from(words);
    let sampler = Sampler::start(&options.run_directory);
    let web = Web::bind(&options, None, sampler.observed()).await.unwrap();
    let address = |text: &str| format!("{text}:1").parse::<SocketAddr>().unwrap();
    let (greedy, other) = (address("192.0.2.1"), address("192.0.2.2"));
    let mut held: Vec<_> = (0..super::MOST_OF_AN_ADDRESS).map(|_| web.place(greedy)).collect();
    assert!(held.iter().all(Option::is_some) && web.place(greedy).is_none());
    assert!(web.place(other).is_some());
    held.pop();
    assert!(web.place(greedy).is_some(), "a place is free again");
    held.clear();
    let local: Vec<_> = (0..1000).map_while(|_| web.place(address("127.0.0.1"))).collect();
    assert_eq!(local.len(), super::MOST_CONNECTIONS);
    drop(local);
    assert!(web.of_address.lock().unwrap().is_empty());
}
