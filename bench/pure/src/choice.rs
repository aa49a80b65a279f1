//! Choosing a credential where refusals have put half of them last.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use berth::admission::Policy;
use berth::pool::{
    Ask, Balance, Choice, CredentialId, CredentialIndex, CredentialSpec, Lineage, ModelPatterns,
    Pool, Reach, Refused, RouteIndex, RouteMembers, SecretSource, Settlement,
};
use globset::Glob;

use super::Work;

const MODELS: usize = 100;
/// Sessions that each credential of the first half refuses, for each model: enough to be shunned.
const REFUSALS: usize = 4;
const ROUTE: RouteIndex = RouteIndex(0);

/// A session after the other asks for one model after the other.
pub fn among(count: usize) -> Work {
    let models: Vec<String> = (0..MODELS).map(|it| format!("model-{it}")).collect();
    let began = Instant::now();
    let pool = pool(count, began);
    refuse(&pool, &models, count, began);
    let mut turn = 0;
    Box::new(move || {
        turn += 1;
        let ask = Ask {
            route: ROUTE,
            model: Some(&models[turn % MODELS]),
            tried: &[],
            only: None,
            session: Some(Lineage::root(scattered(turn))),
            reach: Reach::Anywhere,
        };
        // Time goes on, or nothing would have to be brought up to date.
        let now = began + Duration::from_micros(turn as u64);
        match pool.choose(black_box(&ask), now) {
            Choice::Take(lease) => {
                // Nobody of the first half, which is asked last.
                assert!(lease.credential().index().0 >= count / 2);
            }
            Choice::None(why) => panic!("{why:?}"),
        }
    })
}

fn pool(count: usize, now: Instant) -> Pool {
    let secret = std::env::temp_dir().join(format!("berth-pure-{}", std::process::id()));
    std::fs::write(&secret, "sk-bench").expect("a folder for temporary files");
    let all = Glob::new("*").expect("a pattern").compile_matcher();
    let credentials: Vec<_> = (0..count)
        .map(|number| CredentialSpec {
            id: CredentialId::new(&format!("c{number}")).expect("a name"),
            upstream: "openai".into(),
            secret: SecretSource::File(secret.clone()),
            models: ModelPatterns::new(vec![(true, all.clone())]),
            weight: NonZeroU32::MIN,
            tier: 0,
            max_in_flight: None,
            headers: Vec::new(),
            realm: "openai".into(),
            labels: BTreeMap::new(),
        })
        .collect();
    let route = RouteMembers {
        name: "/v1".to_owned(),
        credentials: credentials.iter().map(|it| it.id.clone()).collect(),
        balance: Balance::LeastInFlight,
        affinity: Some(Duration::from_secs(3600)),
    };
    let pool = Pool::new(credentials, vec![route], (&Policy::default(), 1), now);
    let _ = std::fs::remove_file(&secret);
    pool.expect("a pool")
}

/// The first half refuses newcomers of each model, whom the last credential admits.
fn refuse(pool: &Pool, models: &[String], count: usize, now: Instant) {
    let mut session = 0;
    for model in models {
        for _ in 0..REFUSALS {
            for credential in 0..count / 2 {
                session += 1;
                let refused = Refused {
                    credential: CredentialIndex(credential),
                    stated: None,
                };
                let settlement = Settlement {
                    route: ROUTE,
                    model: Some(model),
                    session: Some(Lineage::root(scattered(session))),
                    refused: &[refused],
                    admitted: Some(CredentialIndex(count - 1)),
                    began: now,
                };
                pool.settle(&settlement, now);
            }
        }
    }
}

/// Sessions are named by hashes.
fn scattered(number: usize) -> u64 {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
