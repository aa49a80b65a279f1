"""What the first credential of a pair does: each of these must end with the second one's answer."""

CAPACITY = (
    "sse", "sse_bare_error", "sse_first",
    "http_400", "http_429", "http_500", "http_503", "http_529", "json_200",
)
SHAPES = {
    **{shape: {"refuse": {"shape": shape}} for shape in CAPACITY},
    "rate_limit": {"rate_limit": {"retry_after": "2s"}},
    "quota": "quota",
    "auth": "auth",
    "deactivated": "deactivated",
    "unsupported": "unsupported",
    "challenge": "challenge",
    "html_200": "html_200",
    "reset": "reset",
    "garbage": "garbage",
    "half_head": "half_head",
}
