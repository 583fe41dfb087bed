//! The first program on the documentation's page is the one that is built and run.

#[test]
fn the_page_shows_the_example() {
    let page = include_str!("../../../docs/reference/clients/rust.md");
    assert!(
        page.contains(include_str!("../examples/first.rs").trim_end()),
        "docs/reference/clients/rust.md is out of step"
    );
}
