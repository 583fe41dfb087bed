//! brickOS, a guest system that timevisord knows only by the file plugins/brickos/brickos.toml. The
//! guest logs the calls of all its tasks in one order; timevisord's events must give the same hash.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::flat::{Call, Scene, word};
use crate::host::mentions;
use crate::scenario::Context;

const PLUGIN: &str = include_str!("../../../../plugins/brickos/brickos.toml");
const MS_NS: u64 = 1_000_000;

/// An event in the form in which lab/brickos/jobs.c logs it, in its only log: 0.
fn call(event: &Value) -> anyhow::Result<Call> {
    let (kind, target, value) = match event["kind"].as_str().unwrap_or_default() {
        "set_scheduler" => {
            let (target, asked) = (&event["target"], &event["attributes"]);
            ensure!(asked["policy"] == "round_robin", "another policy");
            // The plugin's words for a task that is new.
            let kind = if target["policy"] == "normal" { 'C' } else { 'P' };
            (kind, word(&target["tid"])?, word(&asked["priority"])?)
        }
        "sleep" => {
            let ns = event["ns"].as_u64().context("no ns")?;
            ensure!(event["absolute"] == false && ns.is_multiple_of(MS_NS), "no milliseconds");
            ('S', 0, u32::try_from(ns / MS_NS)?)
        }
        "yield" => ('Y', 0, 0),
        // As of wait(2).
        "exit" => ('D', 0, word(&event["status"])? >> 8),
        other => anyhow::bail!("{other:?} is nothing that brickOS does"),
    };
    Ok((0, kind, vec![word(&event["thread"]["tid"])?, target, value]))
}

pub(crate) fn brickos(ctx: &Context) -> anyhow::Result<String> {
    let program = ctx.brickos_program()?;
    let mut scene = Scene::new(ctx, &program)?;
    let said = scene.attach(&program).err().context("it is attached without a plugin")?;
    mentions(&format!("{said:#}"), &["jobs.elf: not FreeRTOS"])?;

    scene.add_plugin("brickos.toml", PLUGIN, 0o644)?;
    scene.attach(&program)?;
    let events = scene.run(call)?;
    ensure!(scene.row()?["guest"] == "brickOS 0.9.0", "{}", scene.row()?);

    // What does not depend on how long the guest takes: the numbers in jobs.c.
    let mut counts = BTreeMap::<char, usize>::new();
    let mut names = BTreeMap::<&str, usize>::new();
    for event in &events {
        let (_, kind, _) = call(event)?;
        *counts.entry(kind).or_default() += 1;
        if kind == 'C' {
            *names.entry(event["target"]["comm"].as_str().unwrap_or_default()).or_default() += 1;
        }
    }
    // Created are the idle task, five at the start, the victim and 25 shots. All but the idle task
    // and the boss end. The control task, the sensor and the shots sleep 325 times, others too.
    ensure!([counts[&'C'], counts[&'D']] == [32, 30], "{counts:?}");
    ensure!([counts[&'P'], counts[&'Y']] == [50, 120] && counts[&'S'] > 325, "{counts:?}");
    // Names are cut at 15 bytes. Without arguments a task has none.
    let wanted = [("", 9), ("boss", 1), ("control", 1), ("sensor", 1), ("shot-of-a-long-", 20)];
    ensure!(names == BTreeMap::from(wanted), "{names:?}");
    // A task that has ended is not listed.
    let tasks = scene.row()?["tasks"].as_array().map_or(0, Vec::len);
    ensure!(tasks == 2, "{}", scene.row()?);
    let priorities = [scene.task("", None, "priority")?, scene.task("boss", None, "priority")?];
    ensure!(priorities == [0, 9], "{priorities:?}: {}", scene.row()?);
    scene.host.cli(&["introspect", "detach", "rtos"])?;
    Ok(format!("{} events of 32 tasks exact, by a plugin's file", events.len()))
}
