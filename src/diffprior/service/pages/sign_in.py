"""A form that takes a token, for browsers, which cannot send one in a header."""

from urllib.parse import parse_qs

from .markup import Frame, page, text

COOKIE = "diffprior_token"


def sign_in_page(message: str) -> str:
    """The form, with what was wrong with the last try."""
    form = (
        '<form action="/sign-in" method="post"><label for="token">Token</label>'
        '<input id="token" name="token" type="password" required autocomplete="off">'
        "<button>Sign in</button></form>"
    )
    hint = "`diffprior token create --database ... --rights read` makes one."
    return page("Sign in", [text(message), form, text(hint)], Frame())


def token_of(body: bytes) -> str:
    """The token that a form has sent; empty if there is none."""
    try:
        found = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        return ""
    return found.get("token", [""])[0].strip()
