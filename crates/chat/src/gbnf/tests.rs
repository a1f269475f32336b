//! Grammars in GBNF against texts that they hold and do not hold, as llguidance enforces their Lark: known grammars,
//! drawn ones against a recogniser that knows nothing of lexemes, and hostile ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory};

use super::parse::{Grammar, Node};
use super::*;

/// Whether the Lark of `gbnf` takes all of `text`, and may end there; an error where it cannot be enforced.
fn takes(gbnf: &str, text: &str) -> Result<bool, String> {
    let lark = to_lark(gbnf).map_err(|error| error.to_string())?;
    let environment: TokEnv = ApproximateTokEnv::single_byte_env();
    let factory = Arc::new(ParserFactory::new_simple(&environment).unwrap());
    let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(lark.clone())));
    if let Some(error) = matcher.get_error() {
        return Err(format!("{error}\n{lark}"));
    }
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let taken = matcher.try_consume_tokens(&tokens).map_err(|error| format!("{error}\n{lark}"))?;
    Ok(taken == tokens.len() && matcher.is_accepting().map_err(|error| format!("{error}\n{lark}"))?)
}

fn check(gbnf: &str, right: &[&str], wrong: &[&str]) {
    for (texts, expected) in [(right, true), (wrong, false)] {
        for text in texts {
            let taken = takes(gbnf, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(taken, expected, "{text:?} in {gbnf}\n{}", to_lark(gbnf).unwrap());
        }
    }
}

#[test]
fn known_grammars_hold_what_they_hold() {
    let json = r#"
        root ::= object   # the whole
        value ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::=
          "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array ::= "[" ws (value
            ("," ws value)*)? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
        ws ::= | " " | "\n" [ \t]{0,20}
    "#;
    let right = [r#"{}"#, "{ \"a\": [1, -2.5e+3, null]\n  }", r#"{"é\u00e9\"": {"b": true}, "c": "x" }"#];
    check(json, &right, &["[]", r#"{"a": 01}"#, r#"{"a": "b}"#, r#"{"a" 1}"#, "{,}", ""]);
    // A number's white space may be the line's end that has to follow: the longest lexeme would be wrong.
    let arithmetic = r#"
        root ::= (expr "=" ws term "\n")+
        expr ::= term ([-+*/] term)*
        term ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num ::= [0-9]+ ws
        ws ::= [ \t\n]*
    "#;
    check(arithmetic, &["a=1\n", "(a1 +2) *b =\n3 \n\nx=y\n"], &["a=1", "a=\n", "(a=1\n", "1a=2\n", "a+ 1=2\n"]);
    // The two letters begin with the same byte.
    check("root ::= x root | \"z\"\nx ::= \"a\" | \"aé\" | \"ê\"", &["aêz", "aéz", "z"], &["éz", "ê"]);
    let list = "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"";
    check(list, &["- a\n- 東京\n"], &["- a", "- \n", "a\n"]);
}

#[test]
fn every_form_is_read() {
    check(
        "root ::= \"a\"{2} b? .{1,2}\nb ::= [^\\x00-\\x60c-\\U0010FFFF]",
        &["aab1", "aa12", "aabéé"],
        &["aa", "aa123"],
    );
    check(
        "root ::= (\"ab\"){,2} \"c\"{0} \"]\\[\\\"\\\\-\"",
        &["][\"\\-", "abab][\"\\-"],
        &["c][\"\\-", "ababab][\"\\-"],
    );
    check("root ::= \"\" | [a-] x\nx ::= \"x\"+", &["", "ax", "-xx"], &["a", "bx"]);
    // A text in quotes is repeated as a whole.
    check("root ::= \"ab\"+", &["abab"], &["abb"]);
    check("root ::= \"(\" root \")\" |\n  # none\n \"x\"", &["x", "((x))"], &["((x)", "()"]);
}

#[test]
fn what_is_wrong_is_said() {
    for (gbnf, told) in [
        ("", "`root` is not defined"),
        ("a ::= \"x\"", "`root` is not defined"),
        ("root ::= b", "`b` is not defined"),
        ("root ::= \"a\nroot", "line 1: the end of a text in quotes is expected"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: the rule `root` is defined twice"),
        ("root = \"a\"", "line 1: `::=` is expected behind `root`"),
        ("root ::= (\"a\"", "`)` is expected"),
        ("root ::= [z-a]", "end comes before its beginning"),
        ("root ::= \"\\q\"", "`\\q` is not known"),
        ("root ::= \"\\ud800\"", "hexadecimal digits of a character"),
        ("root ::= \"a\"{3,2}", "is expected"),
        ("root ::= \"a\"{9999}", "2,000"),
        ("root ::= <think>", "tokens"),
        ("root ::= \"a\" )", "no part of a rule"),
    ] {
        let error = to_lark(gbnf).unwrap_err().to_string();
        assert!(error.contains(told), "{gbnf:?}: {error}");
    }
}

/// Each of these would take far more than it is long; all are refused, or small, within moments.
#[test]
fn hostile_grammars_are_bounded() {
    let doubling: String = (0..60).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    let hostile = [
        format!("root ::= r0\n{doubling}r60 ::= \"a\""),
        format!("root ::= {}\"a\"{}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("root ::= \"a\"{}", "{2000}".repeat(60)),
        format!("root ::= {}", "[a]{2000}* ".repeat(3000)),
        format!("root ::= {} root", "(\"a\"|\"b\"|\"ab\")* ".repeat(1500)),
        format!("root ::= \"{}\"", "x".repeat(60_000)),
        format!("root ::= ({})* root | \"z\"", ["[a-z]"; 2000].join("|")),
        (0..1200).map(|i| format!("r{i} ::= \"a\"\n")).collect(),
        "x".repeat(MAX_BYTES + 1),
    ];
    for gbnf in hostile {
        if let Ok(lark) = to_lark(&gbnf) {
            assert!(lark.len() <= mesh_types::Constraint::MAX_GRAMMAR, "{:.60}", gbnf);
        }
    }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// The right side of a rule, over three letters and three rules.
    fn expression(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 3 } else { 8 }) {
            0 => ["\"a\"", "\"ab\"", "\"b\"", "\"\"", "\"ba\""][self.below(5)].to_owned(),
            1 => ["[ab]", "[a-c]", "[^ab]", "[c]"][self.below(4)].to_owned(),
            2 => ["root", "x", "y"][self.below(3)].to_owned(),
            3 | 4 => format!("({} | {})", self.expression(depth - 1), self.expression(depth - 1)),
            5 => format!("({}){}", self.expression(depth - 1), ["*", "+", "?", "{2}", "{1,2}"][self.below(5)]),
            _ => format!("{} {}", self.expression(depth - 1), self.expression(depth - 1)),
        }
    }

    fn text(&mut self) -> String {
        (0..self.below(7)).map(|_| ["a", "b", "c"][self.below(3)]).collect()
    }
}

/// Whether the grammar holds `text`, by trying everything: for each part and beginning the ends that it can have, until
/// there are no more.
fn holds(grammar: &Grammar, text: &str) -> bool {
    let chars: Vec<u32> = text.chars().map(u32::from).collect();
    let mut ends = vec![vec![BTreeSet::new(); chars.len() + 1]; grammar.nodes.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for node in 0..grammar.nodes.len() {
            for from in 0..=chars.len() {
                let found: BTreeSet<usize> = match &grammar.nodes[node] {
                    Node::Chars(set) => {
                        let is_in = |c: &u32| set.ranges().iter().any(|(low, high)| (low..=high).contains(&c));
                        chars.get(from).filter(|c| is_in(c)).map(|_| from + 1).into_iter().collect()
                    }
                    Node::Rule(rule) => ends[grammar.rules[*rule]][from].clone(),
                    Node::Choice(parts) => parts.iter().flat_map(|part| ends[*part][from].clone()).collect(),
                    Node::Sequence(parts) => parts.iter().fold(BTreeSet::from([from]), |reached, part| {
                        reached.iter().flat_map(|at| ends[*part][*at].clone()).collect()
                    }),
                    Node::Repeat(inner, min, max) => {
                        let (mut reached, mut found) = (BTreeSet::from([from]), BTreeSet::new());
                        // Beyond as many as there are characters, only empty texts repeat.
                        let most = max.unwrap_or(u32::MAX).min(min + chars.len() as u32 + 1);
                        for count in 0..=most {
                            if count >= *min {
                                found.extend(&reached);
                            }
                            reached = reached.iter().flat_map(|at| ends[*inner][*at].clone()).collect();
                        }
                        found
                    }
                };
                if found.len() > ends[node][from].len() {
                    ends[node][from] = found;
                    changed = true;
                }
            }
        }
    }
    ends[grammar.rules[0]][0].contains(&chars.len())
}

#[test]
fn drawn_grammars_hold_the_same_texts_in_both_languages() {
    let (mut held, mut not) = (0, 0);
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let [root, x, y] = [3, 2, 2].map(|depth| dice.expression(depth));
        let gbnf = format!("root ::= {root}\nx ::= {x} | \"c\"\ny ::= {y}");
        let grammar = parse::parse(&gbnf).unwrap();
        let texts: BTreeSet<String> = (0..12).map(|_| dice.text()).collect();
        for text in texts {
            let expected = holds(&grammar, &text);
            match takes(&gbnf, &text) {
                Ok(taken) => assert_eq!(taken, expected, "{text:?}, seed {seed}:\n{gbnf}\n{}", to_lark(&gbnf).unwrap()),
                // A grammar without any text is refused.
                Err(error) => assert!(!expected, "seed {seed}: {error}\n{gbnf}"),
            }
            if expected { held += 1 } else { not += 1 }
        }
    }
    assert!(held > 20 && not > 20, "{held} held, {not} not");
}
