#include "bert_qa/squad/squad_dataset.h"

#include <doctest/doctest.h>

#include "bert_qa/tests/support/error_texts.h"
#include "bert_qa/tests/support/records.h"
#include "feed/counter_hash.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

std::string dataset_refusal(const std::string& text, const SquadOptions& options = {}) {
  try {
    parse_squad(text, "q.json", options);
  } catch (const fsdp::IoError& error) {
    CHECK(error.code() == fsdp::ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

std::string nested(const std::string& qas) {
  return R"({"version":"1.1","data":[{"title":"t","paragraphs":[{"context":"aé北 b","qas":[)" +
         qas + "]}]}]}";
}
std::string qa(const std::string& id, const std::string& answers) {
  return R"({"id":")" + id + R"(","question":"Q?","answers":)" + answers + "}";
}

const std::string kFlat =
    R"({"id":"1","title":"t","context":"aé北 b","question":"Q?","answers":{"text":["北"],"answer_start":[2]}})";

TEST_CASE("the shipped files have their questions, each answer at its offset") {
  const QaDataset train = read_squad(example_file("xquad-en-train.json"));
  const QaDataset dev = read_squad(example_file("xquad-en-dev.json"));
  CHECK(train.questions.size() == 992);
  CHECK(dev.questions.size() == 198);
  CHECK(train.skipped.empty());
  CHECK(train.unanswerable_count() == 0);
  CHECK(train.questions[0].id == "56beb4343aeaaa14008c925b");
  CHECK(train.contexts.size() == 200);
  CHECK(dev.contexts.size() == 40);
}

TEST_CASE("nested and flat files give the same questions") {
  for (const std::string& text :
       {nested(qa("1", R"([{"text":"北","answer_start":2}])")), kFlat, kFlat + "\n",
        R"({"data":[)" + kFlat + "]}",
        // Keys may be in any order, and unknown keys may have any value.
        std::string(
            R"({"data":[{"paragraphs":[{"qas":[{"answers":[{"answer_start":2,"text":"北",)"
            R"("more":[1,{"text":3}]}],"plausible_answers":[{"text":5}],"question":"Q?",)"
            R"("is_impossible":false,"id":"1"}],"context":"aé北 b"}]}],"version":null})")}) {
    const QaDataset dataset = parse_squad(text, "q.json");
    REQUIRE(dataset.questions.size() == 1);
    const QaQuestion& question = dataset.questions[0];
    CHECK(question.id == "1");
    CHECK(question.question == "Q?");
    CHECK(dataset.context_of(question) == "aé北 b");
    REQUIRE(question.answers.size() == 1);
    CHECK(question.answers[0].text == "北");
    CHECK(question.answers[0].start == 2);
  }
}

TEST_CASE("rows one a line share a context that stands in neighbouring rows") {
  std::string second = kFlat;
  second.replace(second.find("\"1\""), 3, "\"2\"");
  const QaDataset dataset = parse_squad(kFlat + "\r\n\n" + second + "\n", "q.json");
  CHECK(dataset.questions.size() == 2);
  CHECK(dataset.contexts.size() == 1);
}

TEST_CASE("a question without an answer is unanswerable") {
  const std::string impossible =
      R"({"id":"2","question":"Q?","answers":[],"is_impossible":true,"plausible_answers":[]})";
  const QaDataset dataset = parse_squad(
      nested(qa("1", R"([{"text":"a","answer_start":0}])") + "," + impossible), "q.json");
  CHECK(dataset.questions.size() == 2);
  CHECK(dataset.unanswerable_count() == 1);
}

TEST_CASE("an answer that is not at its offset is an error, or a row left out and named") {
  const std::string text =
      nested(qa("1", R"([{"text":"b","answer_start":4}])") + "," +
             qa("bad", R"([{"text":"北","answer_start":3}])") + "," +
             qa("far", R"([{"text":"b","answer_start":99}])") + "," + qa("1", "[]"));
  CHECK(dataset_refusal(text) ==
        "expected the answer '北' at code point 3 of its context, got ' ' (q.json, question "
        "'bad'); hint: repair the row, or leave bad rows out with --skip-bad-rows");
  const QaDataset dataset = parse_squad(text, "q.json", {.skip_bad_rows = true});
  CHECK(dataset.questions.size() == 1);
  REQUIRE(dataset.skipped.size() == 3);
  CHECK(dataset.skipped[0].id == "bad");
  CHECK(dataset.skipped[1].reason ==
        "expected the answer 'b' at code point 99 of its context, got nothing");
  CHECK(dataset.skipped[2].reason == "another question has the same id");
  CHECK(dataset_refusal(text, {.check_answers = false})
            .starts_with("another question has the same id"));
}

TEST_CASE("files that are not the schema are refused with line and byte") {
  CHECK(dataset_refusal("") == "the JSON text is empty (q.json, line 1, byte 0)");
  CHECK(dataset_refusal("[]").starts_with(
      "not a SQuAD file: expected data, paragraphs and qas as arrays of objects, got an array"));
  CHECK(dataset_refusal("{}").starts_with(fsdp::testing::kHasNoQuestions + " (q.json)"));
  CHECK(
      dataset_refusal("{\n\"data\": 7}") ==
      "not a SQuAD file: expected data, paragraphs and qas as arrays of objects, got a number "
      "(q.json, line 2, byte 11); hint: use SQuAD v1.1 or v2.0, or one flat JSON object per line");
  CHECK(dataset_refusal(nested(qa("1", R"([{"text":"a","answer_start":-1}])")))
            .find(fsdp::testing::kAtMinusOne) != std::string::npos);
  CHECK(dataset_refusal(nested(qa("1", R"([{"text":"a","answer_start":"0"}])")))
            .find("got a string") != std::string::npos);
  CHECK(
      dataset_refusal(nested(qa("1", R"([{"text":"a"}])")))
          .starts_with("an answer of question '1' has no text or answer_start (q.json, line 1, "));
  CHECK(dataset_refusal(nested(R"({"question":"Q?","answers":[]})"))
            .starts_with("a question has no id"));
  CHECK(dataset_refusal(R"({"id":"1","question":"Q?","answers":{"text":["a"],"answer_start":[]}})")
            .starts_with("answers have 1 texts and 0 answer_start"));
  CHECK(dataset_refusal(R"({"id":"1","question":"Q?","answers":[]})")
            .starts_with("the question '1' has no context"));
  CHECK(dataset_refusal(nested(qa("1", "[]")).substr(0, 60)).starts_with("broken JSON"));
  CHECK(dataset_refusal(
            nested(R"({"id":"1","question":"Q?","answers":[{"text":"a","answer_start":0}],)"
                   R"("is_impossible":true})"))
            .starts_with("is_impossible is true, but there is an answer (q.json, question '1')"));
}

TEST_CASE("a key that is nearly the schema's, where that is missing, is named with the one meant") {
  const auto said = [](const std::string& text) { return dataset_refusal(text); };
  const auto replaced = [](std::string text, const std::string& key, const std::string& by) {
    const std::string quoted = '"' + key + '"';
    for (size_t at = 0; (at = text.find(quoted, at)) != text.npos; at += by.size()) {
      text.replace(at, quoted.size(), '"' + by + '"');
    }
    return text;
  };
  const std::string whole = nested(qa("1", R"([{"text":"北","answer_start":2}])"));
  REQUIRE(said(whole) == "accepted");
  CHECK(said(replaced(whole, "answers", "answer")) ==
        "the key 'answer' is unknown, expected 'answers' (q.json, question '1'); hint: repair the "
        "row, or leave bad rows out with --skip-bad-rows");
  CHECK(
      said(replaced(kFlat, "answers", "Answers"))
          .starts_with("the key 'Answers' is unknown, expected 'answers' (q.json, question '1')"));
  CHECK(said(replaced(whole, "answers", "solutions"))
            .starts_with(
                "the key 'answers' is missing; unknown keys: 'solutions' (q.json, question '1')"));
  const std::pair<std::string, std::string> containers[] = {{"data", "rows"},
                                                            {"data", "Data"},
                                                            {"data", "dat"},
                                                            {"paragraphs", "paragraph"},
                                                            {"paragraphs", "passages"},
                                                            {"qas", "questions"},
                                                            {"qas", "qa"}};
  for (const auto& [meant, key] : containers) {
    CAPTURE(key);
    CHECK(said(replaced(whole, meant, key))
              .starts_with("the key '" + key + "' is unknown, expected '" + meant +
                           "' (q.json, line 1, byte "));
  }
  CHECK(said(replaced(whole, "question", "questoin"))
            .starts_with("question '1': the key 'questoin' is unknown, expected 'question'"));
  CHECK(said(replaced(whole, "id", "ID"))
            .starts_with("the question 'Q?': the key 'ID' is unknown, expected 'id'"));
  CHECK(
      said(replaced(whole, "context", "contxt"))
          .starts_with(
              "the question '1' has no context: the key 'contxt' is unknown, expected 'context'"));
  CHECK(said(replaced(whole, "answer_start", "start"))
            .starts_with("an answer of question '1' has no text or answer_start: the key 'start' "
                         "is unknown, expected 'answer_start'"));
  CHECK(
      said(replaced(kFlat, "text", "texts"))
          .starts_with(
              "answers of question '1' have no text: the key 'texts' is unknown, expected 'text'"));
  CHECK(said(nested(R"({"id":"1","question":"Q?","answers":[],"is_imposible":true})"))
            .starts_with(
                "question '1': the key 'is_imposible' is unknown, expected 'is_impossible'"));
}

TEST_CASE("keys of other data sets beside the schema's are read over") {
  const QaDataset dataset = parse_squad(
      R"({"version":"2","date":["x"],"data":[{"title":"t","document_id":1,"paragraphs":[)"
      R"({"context":"aé北 b","contexts":["c"],"qas":[{"id":"1","qid":"q","question":"Q?",)"
      R"("questions":["R?"],"context_id":"7","answer":"b","answers":[{"text":"b","texts":["b"],)"
      R"("answer_start":4,"start":1}],"plausible_answers":[{"text":"a","answer_start":0}]},)"
      R"({"id":"2","question":"Q?","is_impossible":true}]}]}]})",
      "q.json");
  CHECK(dataset.questions.size() == 2);
  // predict needs no answers.
  const std::string asked = nested(R"({"id":"1","question":"Q?","answer":"b"})");
  CHECK(dataset_refusal(asked).starts_with("the key 'answer' is unknown, expected 'answers'"));
  CHECK(dataset_refusal(asked, {.need_answers = false}) == "accepted");
  const QaDataset skipped = parse_squad(nested(R"({"id":"1","question":"Q?"},)" + qa("2", "[]")),
                                        "q.json", {.skip_bad_rows = true});
  CHECK(skipped.questions.size() == 1);
  REQUIRE(skipped.skipped.size() == 1);
  CHECK(skipped.skipped[0].reason == "the key 'answers' is missing");
}

TEST_CASE("an answer_start below 0 is a bad row, and nothing where offsets do not matter") {
  const std::string text = nested(qa("1", R"([{"text":"a","answer_start":-1}])") + "," +
                                  qa("2", R"({"text":["a"],"answer_start":[-1]})") + "," +
                                  qa("3", R"([{"text":"a","answer_start":0}])"));
  CHECK(dataset_refusal(text) == fsdp::testing::kAtMinusOne +
                                     " (q.json, question '1'); hint: "
                                     "repair the row, or leave bad rows out with --skip-bad-rows");
  const QaDataset skipped = parse_squad(text, "q.json", {.skip_bad_rows = true});
  REQUIRE(skipped.questions.size() == 1);
  CHECK(skipped.questions[0].id == "3");
  REQUIRE(skipped.skipped.size() == 2);
  CHECK(skipped.skipped[1].id == "2");
  const QaDataset scored = parse_squad(text, "q.json", {.check_answers = false});
  REQUIRE(scored.questions.size() == 3);
  CHECK(scored.questions[1].answers[0].text == "a");
  CHECK(dataset_refusal(nested(qa("1", R"([{"text":"a","answer_start":-2147483649}])")))
            .find("got a number below -2^31") != std::string::npos);
}

TEST_CASE("an error in one of many lines names the line and the byte in the file") {
  const std::string text = kFlat + "\n" + kFlat.substr(0, kFlat.size() - 1) + "\n";
  const std::string message = dataset_refusal(text);
  CHECK(message.starts_with("broken JSON"));
  CHECK(message.find("q.json, line 2, byte " + std::to_string(text.size() - 1)) !=
        std::string::npos);
}

TEST_CASE("a damaged file is read or refused, and nothing else happens") {
  const std::string whole = nested(qa("1", R"([{"text":"北","answer_start":2}])") + "," +
                                   qa("2", R"({"text":["a"],"answer_start":[0]})")) +
                            "\n";
  uint64_t random = 1;
  const auto below = [&](uint64_t bound) { return (random = fsdp::mix64(random)) % bound; };
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (uint64_t flips = 1 + below(3); flips > 0; --flips) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(8));
          break;
        default:
          text.insert(at, text, below(text.size()), 1 + below(8));
      }
      if (text.empty()) text = "{";
    }
    try {
      parse_squad(text, "q.json");
    } catch (const fsdp::IoError& error) {
      CHECK(error.code() == fsdp::ExitCode::kCorruptData);
    }
  }
}

}  // namespace
}  // namespace bert_qa
