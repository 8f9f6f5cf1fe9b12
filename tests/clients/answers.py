"""How the clients answer what an agent asks: permissions by the verdict, questions with the first choice, forms with the
least that their schema demands. The Node clients do the same in answers.mjs."""

import json

FREE_TEXT = "ok"


def form_content(schema):
    """Values for the required members of a form's schema."""
    properties = (schema or {}).get("properties", {})
    return {name: form_value(properties.get(name, {})) for name in (schema or {}).get("required", [])}


def form_value(member):
    if "default" in member:
        return member["default"]
    if "enum" in member:
        return member["enum"][0]
    if "oneOf" in member:
        return member["oneOf"][0]["const"]
    kind = member.get("type")
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return member.get("minimum", 0)
    if member.get("format") == "email":
        return "someone@example.org"
    return FREE_TEXT.ljust(member.get("minLength", 0), ".")


def first_label(question):
    options = question.get("options") or [{"label": FREE_TEXT}]
    return options[0]["label"]


def approval_answer(event, verdict):
    """The body that answers an `approval_request`."""
    if verdict == "deny":
        return {"grant": "deny"}
    arguments = event["arguments"]
    if event["tool_name"] == "ask_user":
        return {"answers": {each["question"]: first_label(each) for each in arguments["questions"]}}
    if event["tool_name"] == "elicitation":
        schema = arguments.get("requested_schema") or arguments.get("schema")
        return {"grant": "allow", "content": form_content(schema)}
    return {"grant": "allow"}


def askuser_answer(call, verdict):
    """The `askuser_answer` for a call that awaits one: the option of the verdict where there is one, else the first."""
    selections, custom = {}, {}
    for index, question in enumerate(json.loads(call["arguments"])["questions"]):
        labels = [option["label"].lower() for option in question.get("options") or []]
        if labels:
            selections[str(index)] = [next((i for i, each in enumerate(labels) if each.startswith(verdict)), 0)]
        else:
            custom[str(index)] = FREE_TEXT
    return {"tool_call_id": call["id"], "selections": selections, "custom": custom}
