#!/usr/bin/env python3
"""usage: make_nq.py SQUAD.json OUT.jsonl[.gz] [--simplified] [--annotations N]
Makes records of Natural Questions from the questions of a SQuAD file (nested schema), for trials without a
download. data/nq-train.jsonl.gz and data/nq-dev.jsonl.gz were made by
  make_nq.py data/xquad-en-train.json data/nq-train.jsonl.gz --simplified
  make_nq.py data/xquad-en-dev.json data/nq-dev.jsonl.gz --simplified --annotations 5
A page is an article, with a heading and one <P> for each paragraph. Every fourth question is asked
on the page of the next article, which does not answer it. Every fourth question, shifted by two, has only a
long answer. With --annotations N, annotators 3, 6, … find no answer.

  --simplified      the simplified format (document_text) instead of the original one (document_tokens)
  --annotations N   annotators per question [1]
"""
import argparse
import gzip
import html
import json
import re

WORD = re.compile(r"\w+|[^\w\s]")


class Page:
    """An article as HTML, tokens and candidates."""

    def __init__(self, article):
        self.title = article["title"].replace("_", " ")
        self.html, self.tokens, self.candidates, self.words = "<html><body>", [], [], []
        self.tag("<H1>")
        self.text(self.title)
        self.tag("</H1>")
        for paragraph in article["paragraphs"]:
            first = len(self.tokens)
            start = self.tag("<P>")
            self.words.append(self.text(paragraph["context"]))
            self.tag("</P>")
            self.candidates.append({"start_token": first, "end_token": len(self.tokens), "start_byte": start,
                                    "end_byte": self.bytes(), "top_level": True})
        self.html += "</body></html>"

    def bytes(self):
        return len(self.html.encode())

    def tag(self, tag):
        start = self.bytes()
        self.html += tag
        self.tokens.append({"token": tag, "start_byte": start, "end_byte": self.bytes(), "html_token": True})
        return start

    def text(self, text):
        """Adds words. Returns (offset, index of the token) of each."""
        words = []
        for match in WORD.finditer(text):
            start = self.bytes()
            self.html += html.escape(match[0], quote=False)
            words.append((match.start(), len(self.tokens)))
            self.tokens.append({"token": match[0], "start_byte": start, "end_byte": self.bytes(),
                                "html_token": False})
            self.html += " "
        return words


def span_of(page, first, end):
    return {"start_token": first, "end_token": end, "start_byte": page.tokens[first]["start_byte"],
            "end_byte": page.tokens[end - 1]["end_byte"]}


def annotation_of(page, paragraph, answer, kind):
    if kind == "none":
        null = {"start_token": -1, "end_token": -1, "start_byte": -1, "end_byte": -1}
        return {"long_answer": {**null, "candidate_index": -1}, "short_answers": [], "yes_no_answer": "NONE"}
    long = {key: value for key, value in page.candidates[paragraph].items() if key != "top_level"}
    short = []
    if kind == "short":
        begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [token for offset, token in page.words[paragraph] if begin <= offset < end]
        if inside:
            short = [span_of(page, inside[0], inside[-1] + 1)]
    return {"long_answer": {**long, "candidate_index": paragraph}, "short_answers": short,
            "yes_no_answer": "NONE"}


def make_records(articles, annotators):
    pages = [Page(article) for article in articles]
    number = 0
    for index, article in enumerate(articles):
        for paragraph, each in enumerate(article["paragraphs"]):
            for qa in each["qas"]:
                kind = {1: "none", 3: "long"}.get(number % 4, "short")
                if kind == "none" and len(pages) == 1:
                    kind = "short"
                page = pages[(index + 1) % len(pages)] if kind == "none" else pages[index]
                number += 1
                yield {
                    "example_id": number,
                    "question_text": " ".join(WORD.findall(qa["question"].lower())),
                    "document_title": page.title,
                    "document_url": "",
                    "document_html": page.html,
                    "document_tokens": page.tokens,
                    "long_answer_candidates": page.candidates,
                    "annotations": [
                        annotation_of(page, paragraph, qa["answers"][0], "none" if a % 3 == 2 else kind)
                        for a in range(annotators)],
                }


def simplified(record):
    record = dict(record)
    tokens = record.pop("document_tokens")
    record.pop("document_html")
    record["document_text"] = " ".join(token["token"].replace(" ", "_") for token in tokens)
    without = lambda span: {key: value for key, value in span.items() if not key.endswith("_byte")}
    record["long_answer_candidates"] = [without(span) for span in record["long_answer_candidates"]]
    record["annotations"] = [
        {**each, "long_answer": without(each["long_answer"]),
         "short_answers": [without(span) for span in each["short_answers"]]}
        for each in record["annotations"]]
    return record


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[0][len("usage: "):], description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad")
    parser.add_argument("out")
    parser.add_argument("--simplified", action="store_true")
    parser.add_argument("--annotations", type=int, default=1)
    arguments = parser.parse_args()
    with open(arguments.squad, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    with open(arguments.out, "wb") as file:
        # Without a time and a name, equal records give equal files.
        out = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if arguments.out.endswith(".gz") else file
        with out:
            for record in make_records(articles, arguments.annotations):
                line = json.dumps(simplified(record) if arguments.simplified else record, ensure_ascii=False)
                out.write((line + "\n").encode())


if __name__ == "__main__":
    main()
