use interline_model::{AskId, CallId};
use serde_json::json;

use super::*;

fn ask(kind: AskKind, input: Value, questions: Vec<Question>) -> Ask {
    Ask {
        id: AskId::from("r1"),
        kind,
        call: Some(CallId::from("t1")),
        tool_name: Text::from_static("Bash"),
        message: Some(Text::from_static("first use of Bash")),
        input: Json::from_value(&input),
        questions,
        suggestions: Some(Json::empty_object()),
    }
}

fn question(text: &'static str, labels: &[&'static str], multi_select: bool) -> Question {
    let options = labels.iter().map(|label| choice(label, Text::new())).collect();
    Question { question: Text::from_static(text), header: None, options, multi_select }
}

fn read(value: Value) -> Chosen {
    Chosen::read(value.as_object().unwrap())
}

fn form() -> Ask {
    let schema = json!({
        "type": "object",
        "properties": {
            "a_env": {"type": "string", "title": "Environment", "enum": ["staging", "production"], "enumNames": ["Staging", "Production"]},
            "b_replicas": {"type": "integer"},
            "c_notify": {"type": "boolean"},
            "d_tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "e_ratio": {"type": "number"},
            "f_note": {"type": "string"},
        },
        "required": ["a_env"],
    });
    ask(AskKind::Form, json!({"message": "Where to?", "requested_schema": schema}), Vec::new())
}

#[test]
fn choices_are_read_from_what_clients_send() {
    let chosen = read(
        json!({"tool_call_id": "t", "selections": {"0": [1, 2], "1": 0, "x": [1], "2": "no"}, "custom": {"1": "free", "3": "", "4": 5}}),
    );
    assert_eq!(chosen.selections, BTreeMap::from([(0, vec![1, 2]), (1, vec![0])]));
    assert_eq!(chosen.custom, BTreeMap::from([(1, "free".to_owned())]));
    assert_eq!(read(json!({"prompt_id": "t", "answer": "yes"})).custom, BTreeMap::from([(0, "yes".to_owned())]));
    assert!(read(json!({"selections": null, "custom": {}})).is_empty());
}

#[test]
fn every_question_needs_an_answer() {
    let ask = ask(AskKind::Question, json!({}), vec![question("One?", &["a", "b"], false), question("Two?", &["c", "d"], true)]);
    let chosen = read(json!({"selections": {"0": [1], "1": [0, 1]}, "custom": {"1": "and e"}}));
    let pairs = vec![(Text::from_static("One?"), Text::from_static("b")), (Text::from_static("Two?"), Text::from_static("c, d, and e"))];
    assert_eq!(answer(&ask, &chosen, ""), Ok(Answer::Choose(pairs)));
    assert_eq!(answer(&ask, &read(json!({"selections": {"0": [1]}})), "summary"), Err(ChoiceError::Unanswered { question: 1 }));
    assert_eq!(
        answer(&ask, &read(json!({"selections": {"0": [2], "1": [0]}})), ""),
        Err(ChoiceError::NoSuchOption { question: 0, option: 2 })
    );
}

#[test]
fn a_message_stands_in_for_the_answer() {
    let ask = ask(AskKind::Question, json!({}), vec![question("One?", &["a", "b"], false)]);
    let said = Answer::Choose(vec![(Text::from_static("One?"), Text::from_static("something else"))]);
    assert_eq!(answer(&ask, &Chosen::default(), "something else"), Ok(said));
    assert_eq!(answer(&ask, &Chosen::default(), ""), Err(ChoiceError::Unanswered { question: 0 }));
}

#[test]
fn answers_and_choices_are_each_others_inverse() {
    let ask = ask(AskKind::Question, json!({}), vec![question("One?", &["a", "a, b"], true), question("Two?", &["c"], false)]);
    for value in [
        json!({"selections": {"0": [1, 0], "1": [0]}}),
        json!({"selections": {"0": [0]}, "custom": {"1": "free"}}),
        json!({"custom": {"0": "x, y", "1": "c?"}}),
    ] {
        let picked = read(value);
        let given = answer(&ask, &picked, "").unwrap();
        assert_eq!(chosen(&ask, &given), picked);
    }
    let native = json!({"behavior": "allow", "updatedInput": {"answers": {"One?": "a", "Two?": "free"}}});
    let native = chosen(&ask, &Answer::Native(Json::from_value(&native)));
    assert_eq!(native, read(json!({"selections": {"0": [0]}, "custom": {"1": "free"}})));
}

#[test]
fn a_permission_is_never_given_by_chance() {
    let ask = ask(AskKind::Permission, json!({"command": "ls"}), Vec::new());
    let labels: Vec<Text> = questions(&ask)[0].options.iter().map(|option| option.label.clone()).collect();
    assert_eq!(labels, [ALLOW, ALLOW_ALWAYS, DENY]);
    let allow = |always| Ok(Answer::Allow { input: None, always });
    let deny = |message: &str| Ok(Answer::Deny { message: Text::from(message.to_owned()) });
    for (value, message, expected) in [
        (json!({"selections": {"0": [0]}}), "whatever", allow(false)),
        (json!({"selections": {"0": [1]}}), "", allow(true)),
        (json!({"selections": {"0": [2]}}), "", deny(DENIED)),
        (json!({"selections": {"0": [2]}, "custom": {"0": "use make"}}), "", deny("use make")),
        (json!({"custom": {"0": "allow"}}), "", allow(false)),
        (json!({"custom": {"0": "allow it maybe"}}), "", deny("allow it maybe")),
        (json!({}), " Allow ", allow(false)),
        (json!({}), "what does it do?", deny("what does it do?")),
        (json!({}), "", Err(ChoiceError::Unanswered { question: 0 })),
        (json!({"selections": {"0": [3]}}), "", Err(ChoiceError::NoSuchOption { question: 0, option: 3 })),
        (json!({"selections": {"1": [0]}}), "", Err(ChoiceError::Unanswered { question: 0 })),
    ] {
        assert_eq!(answer(&ask, &read(value.clone()), message), expected, "{value} {message:?}");
    }
    let chosen = chosen(&ask, &Answer::Deny { message: Text::from_static("use make") });
    assert_eq!(chosen, read(json!({"selections": {"0": [2]}, "custom": {"0": "use make"}})));
}

#[test]
fn without_suggestions_nothing_is_allowed_always() {
    let ask = Ask { suggestions: None, ..ask(AskKind::Permission, json!({}), Vec::new()) };
    assert_eq!(questions(&ask)[0].options.len(), 2);
    assert_eq!(answer_in_words(&ask, "allow always"), Answer::Allow { input: None, always: false });
}

#[test]
fn a_form_is_a_question_for_each_field() {
    let form = form();
    let shown = questions(&form);
    assert_eq!(shown.len(), 7);
    let labels = |number: usize| shown[number].options.iter().map(|option| option.label.to_string()).collect::<Vec<_>>();
    assert_eq!(labels(0), [ACCEPT, DECLINE]);
    assert_eq!(labels(1), ["Staging", "Production"]);
    assert_eq!(labels(2), ["Skip"]);
    assert_eq!(labels(3), ["Yes", "No", "Skip"]);
    assert!(shown[4].multi_select);

    let picked = read(json!({
        "selections": {"0": [0], "1": [1], "3": [1], "4": [0, 1], "6": [0]},
        "custom": {"2": "3", "5": "0.5"},
    }));
    let Ok(Answer::Form { action: FormAction::Accept, content: Some(content) }) = answer(&form, &picked, "") else { panic!() };
    let expected = json!({"a_env": "production", "b_replicas": 3, "c_notify": false, "d_tags": ["x", "y"], "e_ratio": 0.5});
    assert_eq!(content.to_value(), expected);

    let back = chosen(&form, &Answer::Form { action: FormAction::Accept, content: Some(content) });
    assert_eq!(back, read(json!({"selections": {"0": [0], "1": [1], "3": [1], "4": [0, 1]}, "custom": {"2": "3", "5": "0.5"}})));
}

#[test]
fn a_form_says_what_does_not_fit() {
    let fit = |value: Value| answer(&form(), &read(value), "");
    assert_eq!(fit(json!({"selections": {"0": [0]}})), Err(ChoiceError::Unanswered { question: 1 }));
    let wrong = fit(json!({"selections": {"1": [0]}, "custom": {"2": "many"}}));
    assert_eq!(wrong.unwrap_err().to_string(), "`b_replicas` takes a whole number");
    assert_eq!(fit(json!({"selections": {"0": [1]}})), Ok(Answer::Form { action: FormAction::Decline, content: None }));
    assert_eq!(answer_in_words(&form(), "hm"), Answer::Form { action: FormAction::Decline, content: None });
}

#[test]
fn a_link_is_shown_with_its_address() {
    let link = ask(AskKind::Link, json!({"url": "https://example.com/x"}), Vec::new());
    assert!(questions(&link)[0].question.ends_with("https://example.com/x"));
    assert_eq!(answer(&link, &read(json!({"selections": {"0": [0]}})), ""), Ok(Answer::Form { action: FormAction::Accept, content: None }));
}

#[test]
fn long_input_is_cut_in_the_question_and_whole_in_the_arguments() {
    let ask = ask(AskKind::Permission, json!({"command": "é".repeat(5000)}), Vec::new());
    let shown = questions(&ask);
    assert!(shown[0].question.chars().count() < 2_100);
    let arguments = arguments(&ask, &shown, None).to_value();
    assert_eq!(arguments["ask"]["input"]["command"].as_str().unwrap().chars().count(), 5000);
    assert_eq!(arguments["source_loop"], Value::Null);
}
