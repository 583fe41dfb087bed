//! Which references stay when others are configured.
//!
//! A reference whose table is the same stays as it is, with its socket, its schedule and its keys.
//! One whose table has other keys is made anew. What an NTP server said stays true, whatever else is
//! configured about it; of any other clock the keys say how it is read, so a changed one begins with
//! nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use timevisor_time::Duration;

use super::{Reference, pool};
use crate::config::ReferenceConfig;

/// What becomes of a place in the new configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The reference at this index before stays.
    Stays(usize),
    /// It is made anew; the facts of the one at this index before stay true.
    Renewed(usize),
    /// It is made anew and knows nothing.
    New,
}

fn place(before: &[ReferenceConfig], now: &ReferenceConfig) -> Place {
    let name = now.name();
    let Some(index) = before.iter().position(|config| config.name() == name) else {
        return Place::New;
    };
    match (&before[index], now) {
        (old, new) if old == new => Place::Stays(index),
        (ReferenceConfig::Ntp { .. }, ReferenceConfig::Ntp { .. }) => Place::Renewed(index),
        _ => Place::New,
    }
}

/// Makes the references of `configs` from those of `before`, each with the index of the one whose
/// facts it keeps. On success `references` is left empty.
///
/// # Errors
/// When one cannot be made; nothing has changed then.
pub fn arrange(
    before: &[ReferenceConfig],
    references: &mut Vec<Reference>,
    configs: &[ReferenceConfig],
    now: Duration,
) -> anyhow::Result<Vec<(Reference, Option<usize>)>> {
    let places: Vec<Place> = configs.iter().map(|config| place(before, config)).collect();
    let mut pools = BTreeMap::new();
    for (config, reference) in before.iter().zip(references.iter()) {
        if let Some((name, pool)) = config.pool().zip(reference.driver.pool()) {
            pools.insert(name.to_owned(), pool);
        }
    }
    let mut made = Vec::new();
    for (config, place) in configs.iter().zip(&places) {
        made.push(match place {
            Place::Stays(_) => None,
            Place::Renewed(_) | Place::New => Some(make(config, &mut pools, now)?),
        });
    }
    let mut before: Vec<Option<Reference>> =
        std::mem::take(references).into_iter().map(Some).collect();
    let arranged = places.into_iter().zip(made).filter_map(|(place, made)| match place {
        Place::Stays(index) => Some((before[index].take()?, Some(index))),
        Place::Renewed(index) => {
            let mut made = made?;
            if let Some(before) = &before[index] {
                made.offline = before.offline;
                made.driver.inherit(&*before.driver, now);
            }
            Some((made, Some(index)))
        }
        Place::New => Some((made?, None)),
    });
    Ok(arranged.collect())
}

fn make(
    config: &ReferenceConfig,
    pools: &mut BTreeMap<String, pool::Shared>,
    now: Duration,
) -> anyhow::Result<Reference> {
    let Some(name) = config.pool() else { return Reference::new(config, now) };
    let pool = match pools.entry(name.to_owned()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(pool::Pool::new(name)?),
    };
    Ok(Reference::driven(Box::new(pool::Member::new(config, pool.clone(), now)), config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn configs(text: &str) -> Vec<ReferenceConfig> {
        Config::parse(text).unwrap().references
    }

    fn server(address: &str, keys: &str) -> String {
        format!("[[reference]]\ntype = \"ntp\"\naddress = \"{address}\"\n{keys}\n")
    }

    #[test]
    fn the_same_stays_and_a_servers_facts_survive_other_keys() {
        let phc = |poll| format!("[[reference]]\ntype = \"phc\"\npoll = \"{poll}\"\n");
        let before = configs(&(server("a", "") + &server("b", "") + &phc("1s")));
        let after = configs(
            &(phc("2s") + &server("c", "") + &server("b", "poll = \"8s\"") + &server("a", "")),
        );
        let places: Vec<Place> = after.iter().map(|config| place(&before, config)).collect();
        assert_eq!(places, [Place::New, Place::New, Place::Renewed(1), Place::Stays(0)]);
    }

    #[test]
    fn offline_references_stay_offline_and_pools_keep_their_addresses() {
        let pool = |servers| {
            format!("[[reference]]\ntype = \"ntp\"\npool = \"p.invalid\"\nservers = {servers}\n")
        };
        let before = configs(&(pool(2) + &server("192.0.2.1", "")));
        let mut references = Reference::all(&before, Duration::ZERO).unwrap();
        assert!(references[2].set_offline(Duration::ZERO, true));
        let shared = references[0].driver.pool().unwrap();
        let after = configs(&(pool(3) + &server("192.0.2.1", "poll = \"8s\"")));
        let arranged = arrange(&before, &mut references, &after, Duration::ZERO).unwrap();
        let from: Vec<_> = arranged.iter().map(|(_, from)| *from).collect();
        assert_eq!(from, [Some(0), Some(1), None, Some(2)]);
        assert!(arranged[3].0.offline && references.is_empty());
        for (member, _) in &arranged[..3] {
            assert!(std::rc::Rc::ptr_eq(&shared, &member.driver.pool().unwrap()));
        }
    }

    #[test]
    fn a_failure_changes_nothing() {
        let before = configs(&server("a", ""));
        let mut references = Reference::all(&before, Duration::ZERO).unwrap();
        // Not from a file: Config::parse would refuse it.
        let bad = vec![ReferenceConfig::ntp("a:b:c".to_owned()), before[0].clone()];
        assert!(arrange(&before, &mut references, &bad, Duration::ZERO).is_err());
        assert_eq!(references.len(), 1);
    }
}
