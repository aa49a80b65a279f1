"""Calls the Python SDKs as its standard input says, and prints what they made of the answers.

Runs in the environment that has the SDKs; everything else of these tests needs Python alone.
"""

import concurrent.futures
import json
import sys

SAY = "Say hello."
TEXT = [{"role": "user", "content": SAY}]


def responses(client, model, seen):
    answer = client.responses.create(model=model, input=SAY)
    seen["text"], seen["complete"] = answer.output_text, answer.status == "completed"
    seen["usage"] = answer.usage.total_tokens


def responses_stream(client, model, seen):
    for event in client.responses.create(model=model, input=SAY, stream=True):
        responses_event(event, seen)


def responses_helper(client, model, seen):
    with client.responses.stream(model=model, input=SAY) as events:
        for event in events:
            responses_event(event, seen)
        assert events.get_final_response().output_text == seen["text"]


def responses_event(event, seen):
    seen["last"] = event.type
    if event.type == "response.output_text.delta":
        seen["text"] += event.delta
    if event.type == "response.completed":
        seen["complete"], seen["usage"] = True, event.response.usage.total_tokens
    if event.type == "response.failed":
        seen["code"] = event.response.error.code


def chat(client, model, seen):
    answer = client.chat.completions.create(model=model, messages=TEXT)
    choice = answer.choices[0]
    seen["text"], seen["complete"] = choice.message.content, choice.finish_reason == "stop"
    seen["usage"] = answer.usage.total_tokens


def chat_stream(client, model, seen):
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(model=model, messages=TEXT, stream=True, stream_options=options):
        for choice in chunk.choices:
            seen["text"] += choice.delta.content or ""
            seen["complete"] |= choice.finish_reason == "stop"
        if chunk.usage:
            seen["usage"] = chunk.usage.total_tokens


def messages(client, model, seen):
    answer = client.messages.create(model=model, messages=TEXT, max_tokens=100)
    seen["text"], seen["complete"] = answer.content[0].text, answer.stop_reason == "end_turn"
    seen["usage"] = answer.usage.output_tokens


def messages_stream(client, model, seen):
    for event in client.messages.create(model=model, messages=TEXT, max_tokens=100, stream=True):
        seen["last"] = event.type
        if event.type == "content_block_delta":
            seen["text"] += event.delta.text
        if event.type == "message_delta":
            seen["usage"] = event.usage.output_tokens
        seen["complete"] |= event.type == "message_stop"


def messages_helper(client, model, seen):
    with client.messages.stream(model=model, messages=TEXT, max_tokens=100) as events:
        for text in events.text_stream:
            seen["text"] += text
        answer = events.get_final_message()
    seen["complete"], seen["usage"] = answer.stop_reason == "end_turn", answer.usage.output_tokens


def models(client, model, seen):
    seen["text"] = " ".join(model.id for model in client.models.list())
    seen["complete"], seen["usage"] = True, None


def call(task):
    if task["api"].startswith("messages"):
        import anthropic as library
        client = library.Anthropic
    else:
        import openai as library
        client = library.OpenAI
    seen = {"id": task["id"], "text": "", "complete": False, "usage": None, "error": None}
    try:
        made = client(api_key="sk-client", base_url=task["base"], max_retries=task["retries"], timeout=30)
        globals()[task["api"].replace(" ", "_")](made, task["model"], seen)
    except Exception as error:
        response = getattr(error, "response", None)
        seen["error"] = {
            "classes": [kind.__name__ for kind in type(error).__mro__],
            "status": getattr(error, "status_code", None),
            "retry_after": response.headers.get("retry-after") if response is not None else None,
            "text": str(error)[:300],
        }
    return seen


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for done in pool.map(call, json.load(sys.stdin)):
        print(json.dumps(done), flush=True)
