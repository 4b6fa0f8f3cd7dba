//! The documents name tests as proof. A name that is no test any more must not go unnoticed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The names of all functions in the Rust files below `dir`, tests among them.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).unwrap();
            let after_fn = source.split("fn ").skip(1);
            found.extend(after_fn.filter_map(|rest| rest.split_once('(')).map(|(name, _)| name.to_owned()));
        }
    }
}

/// What stands between backticks and can be a test: a function's name of several words.
fn named(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_name = |name: &&str| {
        name.matches('_').count() >= 3
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    quoted.filter(is_name).collect()
}

/// The numbers that a test proves: `rap_04_05_d25_a_server…` proves 4 and 5, and D25.
fn numbers(test: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut of_rap = false;
    for word in test.split('_') {
        let (letter, digits) = match word.strip_prefix('d') {
            Some(digits) => ("D", digits),
            None => ("", word),
        };
        match digits.parse::<u32>() {
            Ok(number) if letter == "D" || of_rap => drop(found.insert(format!("{letter}{number}"))),
            Ok(_) | Err(_) => {}
        }
        // Numbers behind the first other word are no longer requirements.
        let is_label = ["f", "i", "d"].iter().any(|label| {
            word.strip_prefix(label)
                .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()) && !rest.is_empty())
        });
        of_rap = word == "rap" || (of_rap && (word.parse::<u32>().is_ok() || is_label));
        if !of_rap && !is_label {
            break;
        }
    }
    found
}

#[test]
fn the_table_of_requirements_is_whole_and_every_test_it_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/rap.md")).unwrap();
    let mut tests = BTreeSet::new();
    for dir in ["src", "tests"] {
        functions(&root.join(dir), &mut tests);
    }
    let mut rows = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, _, proof, ""] = cells[..] else { continue };
        if number.trim_start_matches('D').parse::<u32>().is_ok() {
            assert!(
                rows.insert(number.to_owned(), proof.to_owned()).is_none(),
                "{number} stands there twice"
            );
        }
    }
    let expected: BTreeSet<String> =
        (1..=54).map(|n| n.to_string()).chain((1..=38).map(|n| format!("D{n}"))).collect();
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (number, proof) in &rows {
        let names = named(proof);
        for name in &names {
            assert!(tests.contains(*name), "{number} names {name}, which is no test");
        }
        let excused = ["Not ours: ", "By design: ", "Open"].iter().any(|excuse| proof.starts_with(excuse));
        assert!(excused || !names.is_empty(), "{number} has no proof and says no reason");
        let is_requirement = !number.starts_with('D');
        if is_requirement && !names.is_empty() {
            let proven = names.iter().any(|name| numbers(name).contains(number));
            assert!(proven, "no test of {number} carries its number: {names:?}");
        }
    }
}

#[test]
fn every_case_of_clients_has_a_test_that_exists_or_says_why_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for dir in ["src", "tests"] {
        functions(&root.join(dir), &mut tests);
    }
    let document = std::fs::read_to_string(root.join("docs/ag-ui.md")).unwrap();
    let mut cases = 0;
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, _, proof, ""] = cells[..] else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        cases += 1;
        assert_eq!(number, cases, "the cases are numbered in order");
        let names = named(proof);
        for name in &names {
            assert!(tests.contains(*name), "{number} names {name}, which is no test");
        }
        let excused = ["Not ours: ", "Open: "].iter().any(|excuse| proof.starts_with(excuse));
        assert!(excused || !names.is_empty(), "{number} has no proof and says no reason");
    }
    assert!(cases > 40, "{cases}");
}

/// What a client is refused with is in the documentation, and nothing else is.
#[test]
fn every_code_that_clients_are_refused_with_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_code = |word: &str| {
        word == "abort"
            || word.contains('_') && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
            || word == "INTERNAL"
    };
    let mut used = BTreeSet::new();
    for file in ["src/slice/runs.rs", "src/slice/resume.rs", "src/http/agui/tail.rs"] {
        let source = std::fs::read_to_string(root.join(file)).unwrap();
        used.extend(source.split('"').skip(1).step_by(2).filter(|text| is_code(text)).map(str::to_owned));
    }
    let document = std::fs::read_to_string(root.join("docs/ag-ui.md")).unwrap();
    let (_, table) = document.split_once("| code | says |").unwrap();
    let first_cells = table.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let told = first_cells.flat_map(|cell| cell.split('`').map(str::to_owned).collect::<Vec<_>>());
    let told: BTreeSet<String> = told.filter(|word| is_code(word)).collect();
    assert!(used.len() > 10, "{used:?}");
    assert_eq!(told, used);
}

#[test]
fn every_document_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for dir in ["src", "tests"] {
        functions(&root.join(dir), &mut tests);
    }
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            // Messages and fields have names of this shape as well; those of tests begin like one or are long.
            let of_a_test = |name: &&str| name.matches('_').count() >= 5;
            for name in named(&text).into_iter().filter(of_a_test) {
                assert!(tests.contains(name), "{} names {name}, which is no test", path.display());
            }
        }
    }
}

#[test]
fn a_test_says_the_numbers_that_it_proves() {
    let of = |test: &str| numbers(test).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(of("rap_04_05_d25_a_server_of_7"), "4 5 D25");
    assert_eq!(of("rap_09_16_f63_i6_d4_x"), "16 9 D4");
    assert_eq!(of("f31_d18_a_body_of_4"), "D18");
    assert_eq!(of("wraps_12"), "");
    assert_eq!(of("a_body_12_rap_3"), "");
}

#[test]
fn the_checklist_of_compaction_is_whole_and_every_line_has_a_proof_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/compaction.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, _, proof, ""] = cells[..] else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        let excused = ["Fell away: ", "Open: "].iter().any(|excuse| proof.starts_with(excuse));
        let is_short = |name: &&str| name.starts_with("part_6_");
        let names = proof.split('`').skip(1).step_by(2).filter(is_short).chain(named(proof)).count();
        assert!(excused || names > 0, "{number} has no proof and says no reason");
        assert!(rows.insert(number, proof).is_none(), "{number} stands there twice");
    }
    assert_eq!(rows.into_keys().collect::<Vec<_>>(), (1..=94).collect::<Vec<_>>());
}
