//! The table as a page to read: `docs/families.md`.

use std::fmt::Write;

use super::{
    Condition, Cuts, Demand, EmbeddingScale, FAMILIES, Factor, Family, Inject, Input, Period, REFUSED, Recurrent,
    SpelledOut, Tap, Window,
};

const HEAD: &str = "\
# Model families

<!-- Written by `cargo run -p mesh-gguf --example families-doc`: change the table, not this page. -->

Whether a model can be split over several machines depends on its family, the `general.architecture` of its file. A
family is in the first table only if a test proves that it splits *exactly*: that every logit of the split model equals,
bit by bit, the logit of the model in one piece (`just families`; [how a family gets here](adding-a-family.md)). A model
of any other family is served in one piece.

*Stages begin* says where a model may be cut. *Beyond the usual* is what the slicer does, or refuses, besides
renumbering layers, cutting lists that have an entry a layer, and leaving vocabulary and head to the last stage.

";

const TAIL: &str = "
These two tables are all architectures that the pinned llama.cpp has a name for; a test compares them with its list.
";

/// `docs/families.md` as it has to be.
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    let mut rows: Vec<&Family> = FAMILIES.iter().collect();
    rows.sort_by_key(|row| row.architecture);
    let mut names: Vec<&str> = rows.iter().map(|row| row.architecture).collect();
    names.dedup();
    let _ = writeln!(out, "## {} families that split\n", names.len());
    out.push_str("| family | stages begin | beyond the usual |\n| --- | --- | --- |\n");
    for row in rows {
        let rules = rules(row);
        let _ = writeln!(out, "| {} | {} | {} |", row.architecture, cuts(row), rules.join("; "));
    }
    out.push_str("\n## Families that do not\n\n| family | why |\n| --- | --- |\n");
    let mut refused = REFUSED.to_vec();
    refused.sort_unstable();
    for (family, why) in refused {
        let _ = writeln!(out, "| {family} | {why} |");
    }
    out.push_str(TAIL);
    out
}

fn cuts(row: &Family) -> String {
    let place = match row.cuts {
        Cuts::Any => "anywhere".to_owned(),
        Cuts::MultipleOf(period) => format!("at multiples of {period}"),
        Cuts::BeforeSharedKv => "before the last two layers that have keys and values of their own".to_owned(),
        Cuts::ExpertStep(1) => "at multiples of the step between layers with experts".to_owned(),
        Cuts::ExpertStep(period) => format!("at multiples of {period} and of the step between layers with experts"),
    };
    if matches!(
        row.recurrent,
        Recurrent::Interval(_) | Recurrent::WithoutKvHeads | Recurrent::WithoutKvHeadsAndFeedForward
    ) {
        return format!("{place}, with a recurrent layer and another in every stage");
    }
    match row.window {
        Window::Always(_) | Window::Explicit => {
            format!("{place}, with a layer with a sliding window and one without in every stage")
        }
        Window::None | Window::Period(_) => place,
    }
}

fn rules(row: &Family) -> Vec<String> {
    let mut rules = Vec::new();
    match row.input {
        Input::Lookup(Factor::One) => {}
        Input::Lookup(Factor::SqrtEmbd) => rules.push("embeddings are scaled when they are looked up".to_owned()),
        Input::Tokens => rules.push("the first stage is fed with tokens and keeps the vocabulary".to_owned()),
    }
    match row.tap {
        Tap::Layer("l_out") => {}
        Tap::Layer(name) | Tap::Last(name) => rules.push(format!("rows are taken from `{name}`")),
    }
    match row.inject {
        None => {}
        Some(Inject::Behind(name)) => {
            rules.push(format!("rows are put in behind the graph's own treatment of its input (`{name}`)"));
        }
        Some(Inject::Lead(name)) => rules.push(format!(
            "later stages are fed with tokens as well, keep the vocabulary, and begin with an empty layer whose result \
             (`{name}`) the rows replace"
        )),
        Some(Inject::Over(name)) => rules.push(format!("rows are put over those of placeholder tokens (`{name}`)")),
    }
    match row.window {
        Window::Period(Period { default, .. }) | Window::Always(Period { default, .. }) => {
            rules.push(format!("which layers slide (period {default} unless the file says another) is written out"));
        }
        Window::None | Window::Explicit => {}
    }
    match row.recurrent {
        Recurrent::Never | Recurrent::WithoutKvHeads | Recurrent::WithoutKvHeadsAndFeedForward => {}
        Recurrent::EveryLayer => rules.push("every layer is recurrent".to_owned()),
        Recurrent::Interval(default) => {
            rules.push(format!("which layers are recurrent (all but every {default}th by default) is written out"));
        }
    }
    match row.embedding_scale {
        EmbeddingScale::None => {}
        EmbeddingScale::WherePresent | EmbeddingScale::Always => {
            rules.push("`embedding_scale` is 1 in later stages".to_owned());
        }
    }
    match row.spelled_out {
        SpelledOut::Nothing => {}
        SpelledOut::ResidualScale => rules.push("the default of `residual_scale` is written out".to_owned()),
        SpelledOut::DeepSeek2 => {
            rules.push(
                "`q_lora_rank` of the small models and the default of `expert_gating_func` are written out".into(),
            );
        }
    }
    if let Some(layers) = row.query_factor_at {
        rules.push(format!("stages of a model of {layers} layers set the factor on queries that follows from that"));
    }
    let sizes = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if !row.sized_by_layers.is_empty() {
        rules.push(format!("not models of {} layers", sizes(row.sized_by_layers)));
    }
    if !row.no_stage_of.is_empty() {
        rules.push(format!("no stage of {} layers", sizes(row.no_stage_of)));
    }
    rules.extend(row.conditions.iter().map(condition));
    rules
}

fn condition(it: &Condition) -> String {
    let demand = match it.demand {
        Demand::Present => "is there".to_owned(),
        Demand::Absent => "is absent".to_owned(),
        Demand::AtMost(most) => format!("is absent or at most {most}"),
        Demand::AtLeast(least) => format!("is absent or at least {least}"),
    };
    format!("only if `{}` {demand} ({})", it.key, it.reason)
}
