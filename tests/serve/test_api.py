"""Every route, every limit and every status, without a socket."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

import pytest

from regard import __version__
from regard.errors import ConfigError
from regard.serve import Limits
from regard.serve.batching import BatchKey, compute
from regard.serve.http_errors import HTTPError
from regard.serve.openapi import STATUSES
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.pair_scores import score_pairs
from regard.tasks.word_links import find_links, find_part_links
from regard.viewer import page_records
from tests.serve.driver import JSON, Held, Site
from tests.tasks.tiny import TEXTS, translator

PLAIN = {"attention": None}
LONG_LINE = "der Hund sieht ein Haus, ein grünes Haus und bellt"  # of which 23 characters can be read


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(translator(), translator(kind="word", model=PLAIN), max_lines=7, max_text=50, max_body=1000, body_timeout=0.2)


def test_lines_are_translated_as_by_the_translator(site: Site) -> None:
    lines = [*TEXTS, " ", "x" * 40]
    answer = site.post("/translate", {"text": lines})
    expected = translator().translate(lines)
    assert answer.status == 200
    assert [item["text"] for item in answer.json["translations"]] == [item.text for item in expected]
    assert len({item.text for item in expected}) > 4
    assert [(item["truncated"], item["parts"], item["links"]) for item in answer.json["translations"]] == [
        *[(0, 1, None)] * 6,
        (0, 2, None),
    ]
    scores = [item.hypotheses[0].score if item.hypotheses else math.nan for item in expected]
    assert [math.nan if item["score"] is None else item["score"] for item in answer.json["translations"]] == pytest.approx(
        scores, nan_ok=True
    )


def test_one_line_is_a_list_of_one(site: Site) -> None:
    assert site.post("/translate", {"text": TEXTS[0]}).json == site.post("/translate", {"text": TEXTS[:1]}).json


def test_tags_are_kept_when_asked_for(site: Site) -> None:
    lines = ["ein <b>Hund</b> bellt {x}", "Haus", "<br/>"]
    answer = site.post("/translate", {"text": lines, "keep_tags": True})
    found = [item["text"] for item in answer.json["translations"]]
    assert found == [item.text for item in translator().translate_tagged(lines)]
    assert [found[0].count(part) for part in ("<b>", "</b>", "{x}")] == [1, 1, 1]
    assert found[1:] == [translator().translate(["Haus"])[0].text, "<br/>"]
    plain = site.post("/translate", {"text": lines, "keep_tags": False})
    assert [item["text"] for item in plain.json["translations"]] == [item.text for item in translator().translate(lines)]
    assert plain.json == site.post("/translate", {"text": lines}).json


def test_tags_are_not_kept_where_nothing_says_where_they_go(site: Site) -> None:
    answer = site.post("/translate", {"text": "a", "model": 1, "keep_tags": True})
    assert (answer.status, answer.error) == (422, "keep_tags: this model has no attention over the source to place tags by")
    assert site.post("/attention", {"text": "a", "model": 1}).status == 422
    described = site.ask("GET", "/openapi.json").json["paths"]
    schemas = {
        path: described[path]["post"]["requestBody"]["content"]["application/json"]["schema"] for path in ("/translate", "/attention")
    }
    assert {path: schema["properties"].get("keep_tags", {}).get("type") for path, schema in schemas.items()} == {
        "/translate": "boolean",
        "/attention": "boolean",
    }
    assert schemas["/translate"]["required"] == ["text"]


def test_a_prefix_and_terms_are_held(site: Site) -> None:
    lines, terms = ["Hund bellt", "Haus"], [{"source": "Hund", "target": "Haus"}, {"source": "bellt", "target": "Q"}]
    expected = translator().translate(lines, prefixes=["ein", "der"], terms=Glossary([Term("Hund", "Haus"), Term("bellt", "Q")]))
    found = site.post("/translate", {"text": lines, "prefix": ["ein", "der"], "terms": terms}).json["translations"]
    assert [(item["text"], item["unplaced"]) for item in found] == [(item.text, item.unplaced) for item in expected]
    assert found[0]["text"].startswith("ein")
    assert "Haus" in found[0]["text"]
    assert [item["unplaced"] for item in found] == [["Q"], []]
    one = site.post("/translate", {"text": lines, "prefix": "ein"}).json["translations"]
    assert all(item["text"].startswith("ein") for item in one)
    tagged = site.post("/translate", {"text": "<b>Hund</b>", "prefix": "ein", "terms": terms, "keep_tags": True}).json["translations"]
    assert tagged[0]["text"].replace("<b>", "").replace("</b>", "").startswith("ein")
    refused = site.post("/translate", {"text": lines, "prefix": ["ein"]})
    assert (refused.status, refused.error) == (422, "prefix: expected one for each of 2 lines, found 1")
    assert site.post("/translate", {"text": lines, "terms": [{"source": "Hund"}]}).status == 422
    for term, told in (
        ({"source": "", "target": "a"}, "terms[1].source: expected one line of text with a letter or a digit"),
        ({"source": "!!!", "target": "a"}, "terms[1].source: expected one line of text with a letter or a digit"),
        ({"source": "a", "target": " "}, "terms[1].target: expected one line of text that is not blank"),
        ({"source": "Hund", "target": "a"}, "terms: 'Hund' is 'Haus' and 'a'; expected one translation"),
    ):
        refused = site.post("/translate", {"text": lines, "terms": [terms[0], term]})
        assert (refused.status, refused.error) == (422, told)


def test_the_attention_of_a_prefix_terms_and_tags_is_that_of_what_is_written(site: Site) -> None:
    own = translator()
    asked = {"text": "ein <b>Hund</b>\nbellt 5", "prefix": "der", "terms": [{"source": "Hund", "target": "Haus"}], "keep_tags": True}
    plain, terms = "ein Hund bellt 5", Glossary([Term("Hund", "Haus")])
    found = own.translate([plain], prefixes=["der"], terms=terms, need_attention=True, n_best=own.run.config.decoding.beam_size)[0]
    (record,) = site.post("/attention", asked).json["records"]
    assert (record["items"]["source"]["text"], record["items"]["target"]["text"]) == (plain, found.text)
    (translation,) = site.post("/translate", asked).json["translations"]
    assert record["meta"] == {"with tags": translation["text"]}
    assert [translation["text"].count(part) for part in ("<b>", "</b>", "\n", "5")] == [1, 1, 1, 1]
    assert site.post("/attention", {**asked, "prefix": "<b>der</b>"}).json["records"] == [record]
    (record,) = site.post("/attention", {"text": "Hund", "terms": [{"source": "Hund", "target": "Q"}]}).json["records"]
    assert record["meta"] == {"could not be placed": "Q"}


def test_links_come_when_asked_for(site: Site) -> None:
    lines = [TEXTS[1], " ", LONG_LINE]
    own = translator()
    pairs = [(line, item.part_texts()) for line, item in zip(lines, own.translate(lines), strict=True)]
    expected = [sorted([source, target] for target, source in links) for links in find_part_links(own.run, pairs)]
    found = site.post("/translate", {"text": lines, "links": True}).json["translations"]
    assert [item["links"] for item in found] == expected
    assert (found[1]["links"], found[2]["parts"]) == ([], 4)
    refused = site.post("/translate", {"text": "a", "links": True, "keep_tags": True})
    assert (refused.status, refused.error.partition(",")[0]) == (422, "links: not with keep_tags")
    refused = site.post("/translate", {"text": "a", "links": True, "model": 1})
    assert (refused.status, refused.error) == (422, "links: this model has no attention over the source")


def test_given_pairs_are_scored_and_aligned(site: Site) -> None:
    own = translator()
    pairs = [(TEXTS[0], TEXTS[1]), (" ", "ein"), ("x" * 40, "Haus\ud800")]
    asked: dict[str, Any] = {"pair": [{"source": source, "target": target} for source, target in pairs]}
    scores = site.post("/score", asked).json["scores"]
    for found, expected in zip(scores, score_pairs(own.run, [(a, b.replace("\ud800", "\ufffd")) for a, b in pairs]), strict=True):
        assert found["log_prob"] == pytest.approx(expected.total, abs=1e-4)
        assert (found["tokens"], found["truncated"]) == (expected.pieces, list(expected.truncated))
    assert scores[2]["truncated"] == [17, 0]
    for method in ("attention", "leave-one-out"):
        found = site.post("/align", {**asked, "unit": "character", "method": method}).json["alignments"]
        expected = find_links(own.run, pairs, unit="character", method=method)
        assert [item["links"] for item in found] == [sorted([source, target] for target, source in links) for links in expected]
    assert site.post("/align", asked).json["alignments"][0]["links"] != found[0]["links"]
    refused = site.post("/align", {**asked, "model": 1})
    told = "method: links: this model has no attention over the source; the method leave-one-out needs none"
    assert (refused.status, refused.error) == (422, told)
    assert site.post("/score", {"pair": {"source": "a"}}).error == "pair.target: missing"
    assert site.post("/align", {**asked, "unit": "x"}).error == "unit: expected word or character"
    assert site.post("/score", {"pair": {"source": "a\nb", "target": "a"}}).status == 422


def test_the_search_is_as_asked_for(site: Site) -> None:
    own = translator()
    changes = {"beam_size": 1, "length_penalty": 0.3, "max_length": 3}
    expected = own.translate(TEXTS, decoding=own.run.config.decoding.model_copy(update=changes))
    answer = site.post("/translate", {"text": TEXTS, **changes})
    assert [item["text"] for item in answer.json["translations"]] == [item.text for item in expected]
    assert answer.json != site.post("/translate", {"text": TEXTS}).json


def test_the_second_model_answers_when_asked(site: Site) -> None:
    expected = translator(kind="word", model=PLAIN).translate(TEXTS)
    answer = site.post("/translate", {"text": TEXTS, "model": 1})
    assert [item["text"] for item in answer.json["translations"]] == [item.text for item in expected]
    assert answer.json != site.post("/translate", {"text": TEXTS, "model": 0}).json


def test_attention_comes_as_the_page_reads_it_and_a_blank_line_has_none(site: Site) -> None:
    own = translator()
    found = own.translate(TEXTS, need_attention=True, n_best=own.run.config.decoding.beam_size)
    expected = page_records([record for line, item in zip(TEXTS, found, strict=True) if (record := own.record(line, item))])
    answer = site.post("/attention", {"text": [*TEXTS, " "]})
    assert answer.status == 200
    assert len(answer.json["records"]) == len(TEXTS)
    named = [{**record, "model": "model0"} for record in json.loads(json.dumps(expected))]
    assert answer.json["records"] == named


def test_blank_lines_alone_have_no_attention(site: Site) -> None:
    assert site.post("/attention", {"text": ["", " "]}).json == {"records": []}


def test_a_model_without_attention_says_so(site: Site) -> None:
    answer = site.post("/attention", {"text": "a", "model": 1})
    assert (answer.status, answer.error) == (422, "model: model1 has no attention to show")


def test_a_lone_surrogate_is_no_character(site: Site) -> None:
    answer = site.ask("POST", "/attention", b'{"text": "a\\ud800b"}', JSON)
    assert answer.status == 200
    assert answer.json["records"][0]["items"]["source"]["text"] == "a\ufffdb"


def test_health_names_the_models(site: Site) -> None:
    models = [
        {"name": "model0", "task": "translation", "attends": True},
        {"name": "model1", "task": "translation", "attends": False},
    ]
    answer = site.ask("GET", "/health")
    assert answer.json == {"status": "ok", "version": __version__, "waiting": 0, "models": models}


def test_the_page_asks_this_server_and_nobody_else(site: Site) -> None:
    answer = site.ask("GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = answer.body.decode()
    assert '"live":true,"models":["model0","model1"]' in page
    assert "connect-src 'self'" in page
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page) == []


def test_metrics_count_what_was_asked(site: Site) -> None:
    async def conversation(site: Site) -> str:
        await site.send("POST", "/translate", json.dumps({"text": TEXTS}).encode(), JSON)
        await site.send("PURGE", "/no/such/place")
        return (await site.send("GET", "/metrics")).body.decode()

    text = Site().run(conversation)
    assert 'regard_requests_total{path="/translate",method="POST",status="200"} 1\n' in text
    assert 'regard_requests_total{path="other",method="other",status="404"} 1\n' in text
    assert f"regard_lines_total {len(TEXTS)}\n" in text
    assert "regard_batch_lines_count 1\n" in text
    assert "regard_queue_lines 0\n" in text
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    assert [line for line in text.splitlines() if not line.startswith(("# HELP ", "# TYPE ")) and not sample.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "text: missing"),
        ({"text": None}, "text: expected text or a list, found null"),
        ({"text": "a\nb"}, "text: expected one line of text, without a line feed"),
        ({"text": "x" * 51}, "text: expected at most 50 characters, found 51"),
        ({"text": ["a"] * 8}, "text: expected 1 to 7 items, found 8"),
        ({"text": "a", "model": 2}, "model: expected a whole number from 0 to 1, found 2"),
        ({"text": "a", "beam_size": 11}, "beam_size: expected a whole number from 1 to 10, found 11"),
        ({"text": "a", "max_length": 0}, "max_length: expected a whole number from 1 to 256, found 0"),
        ({"text": "a", "texts": "a"}, "texts: unknown field; known ones: text, model, beam_size, length_penalty, max_length"),
        ("text", "body: expected an object, found text"),
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/attention"])
def test_a_body_that_does_not_fit_is_refused(site: Site, path: str, body: Any, error: str) -> None:
    answer = site.post(path, body)
    own = {"/translate": "keep_tags, prefix, terms, links", "/attention": "method, keep_tags, prefix, terms"}[path]
    error += "; with keep_tags it may have some" * error.endswith("line feed")
    error = error.replace("known ones: text, ", f"known ones: text, {own}, ")
    assert (answer.status, answer.error) == (422, error)


@pytest.mark.parametrize("size", ["1001", "99999999999999999999999999", "-1", "1e3"])
def test_a_stated_length_over_the_limit_is_refused_before_the_body_is_read(site: Site, size: str) -> None:
    answer = site.ask("POST", "/translate", [b"..."], {**JSON, "Content-Length": size})
    assert (answer.status, answer.error) == (413, "body: expected at most 1000 bytes")


def test_a_body_of_no_stated_length_is_cut_off_at_the_limit(site: Site) -> None:
    answer = site.ask("POST", "/translate", [b" " * 600, b" " * 600, b"..."], JSON)
    assert (answer.status, answer.error) == (413, "body: expected at most 1000 bytes")


def test_a_body_in_pieces_is_read_whole(site: Site) -> None:
    assert site.ask("POST", "/translate", [b'{"te', b'xt": ', b'"a"}'], JSON).status == 200


def test_a_body_that_does_not_come_is_not_waited_for(site: Site) -> None:
    answer = site.ask("POST", "/translate", [b"{", b"..."], JSON)
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert answer.error == "body: did not arrive within 0.2 seconds"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json; charset=utf-16"},
        {**JSON, "Content-Encoding": "gzip"},
        {**JSON, "Content-Encoding": "gzip, identity"},
    ],
)
def test_only_plain_json_is_read(site: Site, headers: dict[str, str]) -> None:
    assert site.ask("POST", "/translate", b'{"text": "a"}', headers).status == 415


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=UTF-8"])
def test_json_may_name_its_encoding(site: Site, kind: str) -> None:
    assert site.ask("POST", "/translate", b'{"text": "a"}', {"Content-Type": kind}).status == 200


@pytest.mark.parametrize("path", ["/x", "/health/", "//", "/translate/0", "/docs", "/redoc", "/../health", ""])
def test_an_unknown_path_is_not_found(site: Site, path: str) -> None:
    assert site.ask("GET", path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/translate", "POST"),
        ("OPTIONS", "/translate", "POST"),
        ("DELETE", "/attention", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD"),
        ("NONSENSE", "/metrics", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(site: Site, method: str, path: str, allowed: str) -> None:
    answer = site.ask(method, path, b'{"text": "a"}', JSON)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "[0:0::1]", "box.lan", "localhost."]
)
def test_the_server_answers_to_its_names(site: Site, host: str) -> None:
    assert site.ask("GET", "/health", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.com", "evil.com:8000", "127.0.0.1.evil.com", "localhost.evil.com", "127.0.0.2", "0.0.0.0", "[::2]", "::1", "[::1"),
        *("", " ", "a@localhost", "localhost/", "localhost?", "localhost#", "localhost:x", "localhost:99999", "localhost evil.com"),
        *("localhost, evil.com", "xn--lcalhost-0db", "b\u00f6x.lan", "localhost\\@evil.com"),
    ],
)
def test_the_server_answers_to_no_other_name(site: Site, host: str) -> None:
    answer = site.ask("GET", "/", headers={"Host": host})
    assert (answer.status, answer.error) == (421, "Host: not a name of this server; --allowed-host adds one")
    assert site.ask("POST", "/translate", b'{"text": "a"}', {**JSON, "Host": host}).status == 421


def test_a_request_without_a_host_is_refused(site: Site) -> None:
    assert site.ask("GET", "/health", headers={"Host": None}).status == 421  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "https://127.0.0.1:8000"])
def test_its_own_page_may_ask(site: Site, origin: str) -> None:
    assert site.ask("POST", "/translate", b'{"text": "a"}', {**JSON, "Origin": origin, "Sec-Fetch-Site": "same-origin"}).status == 200


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.com", "http://127.0.0.1", "http://127.0.0.1:8001", "http://localhost:8000", "file://", "x:127.0.0.1:8000"],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_another_site_may_not_ask(site: Site, origin: str, method: str) -> None:
    answer = site.ask(method, "/translate", b'{"text": "a"}', {**JSON, "Origin": origin})
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_browser_that_says_it_comes_from_another_site_is_refused_but_a_link_is_followed(site: Site) -> None:
    assert site.ask("POST", "/translate", b'{"text": "a"}', {**JSON, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert site.ask("GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/openapi.json", "/translate", "/none"])
def test_every_answer_says_what_a_browser_may_do_with_it(site: Site, path: str) -> None:
    headers = site.ask("GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert ("default-src 'none'" in headers["content-security-policy"]) == (path != "/")  # the page's own is inside
    assert not [name for name in headers if name.startswith("access-control-")]


def test_a_sane_request_id_is_kept_and_logged() -> None:
    site = Site()
    answer = site.ask("POST", "/translate", b'{"text": "geheim"}', {**JSON, "X-Request-Id": "Az.09_-"})
    assert answer.headers["x-request-id"] == "Az.09_-"
    line = site.logged()[-1]
    assert {"event": "request", "id": "Az.09_-", "method": "POST", "path": "/translate", "status": 200, "lines": 1}.items() <= line.items()
    assert 0 < line["seconds"] < 60
    assert "geheim" not in site.log.getvalue()


@pytest.mark.parametrize("given", ["", "a b", "a\tb", "x" * 65, '{"a": 1}', "\u00e9"])
def test_any_other_request_id_is_replaced(site: Site, given: str) -> None:
    identity = site.ask("GET", "/none", headers={"X-Request-Id": given}).headers["x-request-id"]
    assert identity != given
    assert re.fullmatch("[0-9a-f]{16}", identity)


def test_the_log_is_one_line_of_ascii_for_each_request_whatever_its_path() -> None:
    site = Site()
    site.ask("GET", "/a\n\u2028\x1b[31m" + "x" * 1000)
    assert site.log.getvalue().isascii()
    assert len(site.log.getvalue().splitlines()) == 1
    assert len(site.logged()[0]["path"]) == 200


def test_the_description_names_every_route_and_every_status(site: Site) -> None:
    described = site.ask("GET", "/openapi.json").json
    assert described["openapi"] == "3.1.0"
    found = {(path, method) for path, operations in described["paths"].items() for method in operations}
    expected = {
        ("/", "get"),
        ("/health", "get"),
        ("/metrics", "get"),
        ("/openapi.json", "get"),
        ("/translate", "post"),
        ("/attention", "post"),
        ("/score", "post"),
        ("/align", "post"),
    }
    assert found == expected
    for path, method in found:
        body = b'{"pair": {"source": "a", "target": "b"}}' if path in ("/score", "/align") else b'{"text": "a"}'
        assert site.ask(method.upper(), path, body, JSON).status == 200
        statuses = described["paths"][path][method]["responses"]
        assert set(statuses) == {"200", *map(str, STATUSES if method == "post" else (403, 421, 503))}
    assert described["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"] == ["text"]


async def queued(held: Held, site: Site, bodies: list[Any], *, path: str = "/translate") -> list[asyncio.Task[Any]]:
    """Let the model begin with the first body, and the others wait behind it."""
    tasks = [asyncio.create_task(site.send("POST", path, json.dumps(bodies[0]).encode(), JSON))]
    await asyncio.to_thread(held.begun.acquire)
    for body in bodies[1:]:
        tasks.append(asyncio.create_task(site.send("POST", path, json.dumps(body).encode(), JSON)))
        await asyncio.sleep(0.02)
    return tasks


def test_what_waits_while_the_model_works_is_taken_together() -> None:
    held = Held()
    site = Site(held, batch_size=4, batch_characters=100)
    bodies: list[Any] = [
        {"text": "a"},
        *[{"text": text} for text in TEXTS],
        {"text": "b", "beam_size": 1},
        {"text": "c" * 60},
        {"text": "d", "beam_size": 1},
    ]

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, bodies)
        assert (await site.send("GET", "/health")).json["waiting"] == 8
        held.let.set()
        return [await task for task in tasks]

    answers = site.run(conversation)
    # At most 4 lines, and 100 characters when all are as long as the longest; other settings go apart.
    assert held.batches == [["a"], TEXTS[:4], [TEXTS[4]], ["b", "d"], ["c" * 60]]
    expected = [
        translator().translate([body["text"]], decoding=translator().run.config.decoding.model_copy(update=body))[0] for body in bodies
    ]
    assert [answer.json["translations"][0]["text"] for answer in answers] == [item.text for item in expected]


def test_a_full_queue_says_when_to_come_again() -> None:
    held = Held()
    site = Site(held, queue=3, max_lines=3)

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, [{"text": "a"}, {"text": ["b", "c"]}, {"text": ["d", "e"]}, {"text": "f"}, {"text": "g"}])
        held.let.set()
        return [await task for task in tasks]

    answers = site.run(conversation)
    assert [answer.status for answer in answers] == [200, 200, 429, 200, 429]
    assert answers[2].error == "too many lines are waiting; try again later"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 60
    assert held.batches == [["a"], ["b", "c", "f"]]


def test_what_takes_too_long_is_given_up_and_forgotten() -> None:
    held = Held()
    site = Site(held, timeout=0.3)

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, [{"text": "a"}, {"text": "b"}])
        answers = [await task for task in tasks]
        assert (await site.send("GET", "/health")).json["waiting"] == 0
        site.service.limits = Limits()
        held.let.set()
        return [*answers, await site.send("POST", "/translate", b'{"text": "c"}', JSON)]

    answers = site.run(conversation)
    assert [answer.status for answer in answers] == [504, 504, 200]
    assert answers[0].error == "no answer within 0.3 seconds"
    assert held.batches == [["a"], ["c"]]


def test_a_client_that_leaves_takes_its_lines_along_and_gives_its_place_to_the_next() -> None:
    held = Held()
    site = Site(held, queue=1, max_lines=1)

    async def conversation(site: Site) -> Any:
        (first,) = await queued(held, site, [{"text": "a"}])
        gone = asyncio.Event()
        second = asyncio.create_task(site.send("POST", "/translate", b'{"text": "b"}', JSON, gone=gone))
        await asyncio.sleep(0.02)
        gone.set()
        third = asyncio.create_task(site.send("POST", "/translate", b'{"text": "c"}', JSON))
        left = await second
        held.let.set()
        return left, await first, await third

    assert [answer.status for answer in site.run(conversation)] == [0, 200, 200]
    assert held.batches == [["a"], ["c"]]
    assert sorted(line["status"] for line in site.logged()) == [200, 200, 499]


def test_a_line_that_fails_fails_alone_and_says_nothing_of_the_inside() -> None:
    held = Held()
    held.broken = lambda lines: "bad" in lines
    site = Site(held)

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, [{"text": "a"}, {"text": "b"}, {"text": "bad"}, {"text": "c"}])
        held.let.set()
        return [await task for task in tasks]

    answers = site.run(conversation)
    assert [answer.status for answer in answers] == [200, 200, 503, 200]
    assert answers[2].error == "the request failed; the server log has the reason under this request_id"
    line = next(line for line in site.logged() if line["status"] == 503)
    assert line["id"] == answers[2].headers["x-request-id"]
    assert line["error"].startswith("ValueError: secret of the model (")


def test_answers_of_another_number_than_lines_are_a_failure() -> None:
    class Forgetful:
        def width(self, settings: Any, item: Any) -> int:
            return len(item)

        def compute(self, settings: Any, items: Any) -> list[str | HTTPError]:
            return ["1"]

    assert compute(BatchKey(Forgetful(), None), ["a"]) == ["1"]
    assert compute(BatchKey(Forgetful(), None), ["a", "b"]) == ["1", "1"]  # each alone
    Forgetful.compute = lambda self, settings, items: []  # pyright: ignore[reportAttributeAccessIssue]
    (failed,) = compute(BatchKey(Forgetful(), None), ["a"])
    assert str(failed).startswith("ValueError: 0 answers for 1 lines (")


def test_a_panic_of_the_model_is_a_failure_that_the_thread_outlives() -> None:
    class Panic(BaseException):
        pass

    class Panicking:
        def width(self, settings: Any, item: Any) -> int:
            return len(item)

        def compute(self, settings: Any, items: Any) -> list[str | HTTPError]:
            raise Panic("rust")

    (failed,) = compute(BatchKey(Panicking(), None), ["a"])
    assert str(failed).startswith("Panic: rust (")


def test_a_request_that_a_second_signal_cancels_is_told_that_the_server_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def cancelled(gauges: Any) -> str:
        raise asyncio.CancelledError

    monkeypatch.setattr(site.service.metrics, "render", cancelled)
    answer = site.ask("GET", "/metrics")
    assert (answer.status, answer.error) == (503, "the server has stopped")
    assert "x-request-id" in answer.headers
    assert site.logged()[-1]["status"] == 503


def test_an_error_of_our_own_is_no_500(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    monkeypatch.setattr(site.service.metrics, "render", lambda gauges: 1 / 0)
    answer = site.ask("GET", "/metrics")
    assert answer.status == 503
    assert "division" not in answer.error
    assert site.logged()[-1]["error"].startswith("ZeroDivisionError: division by zero (")


def test_a_server_that_stops_takes_nothing_more_and_says_so() -> None:
    held = Held()
    site = Site(held)

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, [{"text": "a"}, {"text": "b"}])
        site.service.batcher.stopping = True
        late = await site.send("POST", "/translate", b'{"text": "c"}', JSON)
        health = await site.send("GET", "/health")
        held.let.set()
        return [late, health, *[await task for task in tasks]]

    late, health, *finished = site.run(conversation)
    assert (late.status, late.error) == (503, "the server is stopping")
    assert (health.status, health.json["status"]) == (503, "stopping")
    assert [answer.status for answer in finished] == [200, 200]


def test_what_is_not_finished_in_time_is_refused_at_the_end() -> None:
    held = Held()
    site = Site(held)

    async def conversation(site: Site) -> list[Any]:
        tasks = await queued(held, site, [{"text": "a"}, {"text": "b"}])
        site.service.batcher.abandon()
        answers = [await task for task in tasks]
        assert site.service.batcher.busy
        held.let.set()
        return answers

    assert [(answer.status, answer.error) for answer in site.run(conversation)] == [(503, "the server has stopped")] * 2


def test_a_connection_too_many_is_told_so() -> None:
    site = Site()

    async def conversation(site: Site) -> Any:
        app = site.service.app

        async def marked(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "regard.refused": True}, receive, send)

        site.service.app = marked  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return await site.send("GET", "/health")
        finally:
            site.service.app = app

    answer = site.run(conversation)
    assert (answer.status, answer.error, answer.headers["connection"]) == (503, "too many connections", "close")


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--max-lines 8: must not be more than --queue 7"):
        Limits(max_lines=8, queue=7)
    with pytest.raises(ConfigError, match=r"--max-text 0: expected a number from 1 to"):
        Limits(max_text=0)
