#include "bert_qa/nq/nq_reader.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>
#include <zlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bert_qa/tests/support/records.h"
#include "support/run_process.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace bert_qa {
namespace {

using nlohmann::json;

// One record of both formats. The second candidate is inside the first.
json original_record() {
  const auto token = [](const char* text, bool html) {
    return json{{"token", text}, {"start_byte", 0}, {"end_byte", 1}, {"html_token", html}};
  };
  return {{"example_id", -5},
          {"question_text", "who wrote"},
          {"document_html", "<P>"},
          {"document_tokens",
           {token("<P>", true), token("A da", false), token("wrote", false), token("</P>", true)}},
          {"long_answer_candidates",
           {{{"start_token", 0}, {"end_token", 4}, {"top_level", true}},
            {{"start_token", 1}, {"end_token", 3}, {"top_level", false}}}},
          {"annotations",
           {{{"annotation_id", 7},
             {"long_answer", {{"start_token", 0}, {"end_token", 4}, {"candidate_index", 0}}},
             {"short_answers", {{{"start_token", 1}, {"end_token", 2}}}},
             {"yes_no_answer", "NONE"}}}}};
}

json simplified_record() {
  json record = original_record();
  record.erase("document_tokens");
  record["document_text"] = "<P> Ada wrote </P>";
  return record;
}

NqRecord parsed(const json& record) {
  NqRecord result;
  parse_nq_record(record.dump(), "r.jsonl, line 1", /*need_annotations=*/true, result);
  return result;
}

void check_equal(const NqRecord& a, const NqRecord& b) {
  CHECK(a.example_id == b.example_id);
  CHECK(a.question == b.question);
  REQUIRE(a.document.size() == b.document.size());
  int64_t different = 0;
  for (int64_t i = 0; i < a.document.size(); ++i) {
    different += a.document.token(i) != b.document.token(i) ||
                 a.document.is_html(i) != b.document.is_html(i);
  }
  CHECK(different == 0);
  REQUIRE(a.candidates.size() == b.candidates.size());
  for (size_t i = 0; i < a.candidates.size(); ++i) {
    CHECK(a.candidates[i].span.start_token == b.candidates[i].span.start_token);
    CHECK(a.candidates[i].span.end_token == b.candidates[i].span.end_token);
    CHECK(a.candidates[i].top_level == b.candidates[i].top_level);
  }
  REQUIRE(a.annotations.size() == b.annotations.size());
  for (size_t i = 0; i < a.annotations.size(); ++i) {
    CHECK(a.annotations[i].candidate == b.annotations[i].candidate);
    CHECK(a.annotations[i].yes_no == b.annotations[i].yes_no);
    CHECK(a.annotations[i].short_answers.size() == b.annotations[i].short_answers.size());
  }
}

std::vector<NqRecord> records_of(const std::filesystem::path& file) {
  NqReader reader(file, {});
  std::vector<NqRecord> records;
  for (NqRecord record; reader.next(record);) records.push_back(record);
  return records;
}

// Returns the text as a gzip file.
std::string compressed(const std::string& text) {
  const fsdp::ScratchFolder folder;
  const std::string file = folder / "a.gz";
  const gzFile out = gzopen(file.c_str(), "wb");
  gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
  gzclose(out);
  return fsdp::read_whole(file);
}

std::string refusal_of(const std::filesystem::path& file, bool need_annotations = true) {
  try {
    NqReader reader(file, {.need_annotations = need_annotations});
    for (NqRecord record; reader.next(record);) {
    }
  } catch (const fsdp::IoError& error) {
    CHECK(error.code() == fsdp::ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the two formats give the same record") {
  const NqRecord original = parsed(original_record());
  CHECK(original.example_id == -5);
  CHECK(original.document.token(1) == "Ada");  // spaces inside tokens are removed
  CHECK(original.document.is_html(0));
  CHECK_FALSE(original.document.is_html(1));
  CHECK(original.annotations[0].short_answers[0].end_token == 2);
  check_equal(original, parsed(simplified_record()));
}

TEST_CASE("the script makes the shipped records, in both formats and compressed or not") {
  const fsdp::ScratchFolder folder;
  const auto make = [&](const std::string& name, const std::vector<std::string>& flags) {
    std::vector<std::string> command{"python3",
                                     fsdp::source_file("examples/bert_qa/tools/make_nq.py"),
                                     example_file("xquad-en-dev.json"), folder / name};
    command.insert(command.end(), flags.begin(), flags.end());
    const fsdp::testing::ProcessResult result = fsdp::testing::run_process(command);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return records_of(folder / name);
  };
  const std::vector<NqRecord> shipped = records_of(example_file("nq-dev.jsonl.gz"));
  const std::vector<NqRecord> original = make("o.jsonl.gz", {"--annotations", "5"});
  const std::vector<NqRecord> simple = make("s.jsonl", {"--annotations", "5", "--simplified"});
  REQUIRE(shipped.size() == 198);
  REQUIRE(original.size() == 198);
  REQUIRE(simple.size() == 198);
  for (size_t i = 0; i < shipped.size(); ++i) {
    check_equal(original[i], shipped[i]);
    check_equal(simple[i], shipped[i]);
  }
  CHECK(original[0].candidates[0].span.has_bytes());
}

TEST_CASE("a simplified document has tags and empty tokens by position") {
  json record = simplified_record();
  record["document_text"] = "<P>  <3> </P>";
  const NqRecord parsed_record = parsed(record);
  REQUIRE(parsed_record.document.size() == 4);
  CHECK(parsed_record.document.token(1).empty());
  CHECK_FALSE(parsed_record.document.is_html(2));
  CHECK(parsed_record.document.is_html(3));
}

TEST_CASE("concatenated gzip files, blank lines and a last line without an end are read") {
  const fsdp::ScratchFolder folder;
  const std::string line = simplified_record().dump();
  const std::string both = compressed(line + "\n\n") + compressed(line);
  CHECK(records_of(folder.write("a.jsonl.gz", both)).size() == 2);
  CHECK(records_of(folder.write("plain.gz", line + "\r\n" + line)).size() == 2);
}

// A fault of a record, and a part of the error.
struct Fault {
  std::string line, error;
};

std::vector<Fault> faults() {
  std::vector<Fault> faults = {
      {"[]", "expected an object, got an array"},
      {"7", "expected an object, got a number"},
      {"{", "syntax"},
      {R"({"example_id":1,"example_id":2})", "twice"},
      {"{}", "the record has no example_id"},
  };
  const auto change = [&](const std::string& path, const json& value, const std::string& error,
                          const json& record = original_record()) {
    json changed = record;
    changed[json::json_pointer(path)] = value;
    faults.push_back({changed.dump(), error});
  };
  const auto remove = [&](const std::string& path, const std::string& key,
                          const std::string& error) {
    json changed = original_record();
    changed[json::json_pointer(path)].erase(key);
    faults.push_back({changed.dump(), error});
  };
  change("/example_id", "5", "example_id of the record is a string, expected an integer");
  change("/example_id", 1.5, "example_id of the record is a number with a fraction");
  change("/example_id", 18446744073709551615U, "does not fit 64 bits");
  remove("", "question_text", "the record has no question_text");
  change("/question_text", " ", "question_text is empty");
  change("/question_text", nullptr, "question_text of the record is null, expected a string");
  remove("", "document_tokens", "the record has neither document_text nor document_tokens");
  change("/document_text", "a", "the record has both document_text and document_tokens");
  change("/document_tokens", "a", "document_tokens of the record is a string");
  change("/document_tokens/1", "a", "expected a token of the document as an object, got a string");
  change("/document_tokens/1", json::object(), "a token of the document has no token");
  change("/document_tokens/1/html_token", 1, "html_token of a token of the document is a number");
  change("/document_text", 3, "document_text of the record is a number", simplified_record());
  remove("", "long_answer_candidates", "the record has no long_answer_candidates");
  change("/long_answer_candidates", json::object(), "is an object, expected an array");
  change("/long_answer_candidates/0", 3, "expected a long-answer candidate as an object");
  remove("/long_answer_candidates/1", "top_level", "a long-answer candidate has no top_level");
  change("/long_answer_candidates/1/end_token", 5,
         "long_answer_candidates[1] ends at token 5, but the document has 4 tokens");
  change("/long_answer_candidates/1/end_token", 1, "[1] has the tokens 1 to 1");
  change("/long_answer_candidates/1/start_token", -2, "start_token is -2, expected -1 or more");
  change("/long_answer_candidates/1/start_byte", 3, "[1] has the bytes 3 to -1");
  change("/long_answer_candidates/1", {{"start_token", -1}, {"end_token", -1}, {"top_level", true}},
         "[1] has no tokens");
  remove("", "annotations", "the record has no annotations");
  change("/annotations", json::array(), "the record has no annotations");
  change("/annotations/0", "a", "expected an annotation as an object");
  remove("/annotations/0", "long_answer", "an annotation has no long_answer");
  remove("/annotations/0", "short_answers", "an annotation has no short_answers");
  remove("/annotations/0", "yes_no_answer", "an annotation has no yes_no_answer");
  remove("/annotations/0/long_answer", "candidate_index", "a long answer has no candidate_index");
  change("/annotations/0/yes_no_answer", "MAYBE", "yes_no_answer is 'MAYBE', expected YES, NO");
  change("/annotations/0/yes_no_answer", "YES", "both short_answers and the yes_no_answer YES");
  change("/annotations/0/long_answer/candidate_index", 2, "the candidate_index 2 of 2 candidates");
  change("/annotations/0/long_answer/candidate_index", -1, "the candidate_index -1 of 2");
  change("/annotations/0/long_answer/candidate_index", 1, "0 to 4, but its candidate 1 to 3");
  change("/annotations/0/long_answer/end_token", -1, "long_answer has the tokens 0 to -1");
  change("/annotations/0/short_answers/0/end_token", 1, "short_answers[0] has the tokens 1 to 1");
  change("/annotations/0/short_answers/0/end_token", 9, "short_answers[0] ends at token 9");
  change("/annotations/0/short_answers/0", {{"start_token", -1}, {"end_token", -1}},
         "short_answers[0] has no tokens");
  json outside = original_record();
  outside["annotations"][0]["long_answer"] = {
      {"start_token", 1}, {"end_token", 3}, {"candidate_index", 1}};
  outside["annotations"][0]["short_answers"][0] = {{"start_token", 0}, {"end_token", 2}};
  faults.push_back({outside.dump(), "which are not in the long answer 1 to 3"});
  std::string invalid = original_record().dump();
  invalid[invalid.find("who")] = '\xff';
  faults.push_back({invalid, "UTF-8"});
  faults.push_back({original_record().dump() + "}", ""});
  return faults;
}

TEST_CASE("malformed records are refused with their file and line") {
  const fsdp::ScratchFolder folder;
  const std::string good = simplified_record().dump() + "\n";
  CHECK(faults().size() >= 40);
  for (const Fault& fault : faults()) {
    CAPTURE(fault.line);
    const auto file = folder.write("r.jsonl", good + "\n" + fault.line + "\n" + good);
    const std::string error = refusal_of(file);
    CAPTURE(error);
    CHECK(error.find(file.string() + ", line 3") != std::string::npos);
    CHECK(error.find(fault.error) != std::string::npos);
    CHECK(error.find('\n') == std::string::npos);
    // With skip_bad_rows, the records around it remain.
    NqReader reader(file, {.skip_bad_rows = true});
    int records = 0;
    for (NqRecord record; reader.next(record);) ++records;
    CHECK(records == 2);
    REQUIRE(reader.skipped().size() == 1);
    CHECK(reader.skipped()[0].find("line 3") != std::string::npos);
  }
}

TEST_CASE("a gzip file that is cut off or damaged is refused, also with skip_bad_rows") {
  const fsdp::ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) text += simplified_record().dump() + "\n";
  const std::string whole = compressed(text);
  const auto cut = folder.write("cut.gz", whole.substr(0, whole.size() - 9));
  CHECK(refusal_of(cut).find("the gzip file is cut off (" + cut.string() + ", line ") !=
        std::string::npos);
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 0x55;
  CHECK(refusal_of(folder.write("damaged.gz", damaged)).find("the gzip file is damaged") !=
        std::string::npos);
}

TEST_CASE("questions to predict need no annotations") {
  const fsdp::ScratchFolder folder;
  json record = original_record();
  record.erase("annotations");
  CHECK(refusal_of(folder.write("r.jsonl", record.dump()), false) == "accepted");
}

// Returns a value of /proc/self/status in bytes.
int64_t resident(const std::string& what) {
  const std::string status = fsdp::read_whole("/proc/self/status");
  return std::stoll(status.substr(status.find(what + ":") + what.size() + 1)) * 1024;
}

TEST_CASE("documents of 100,000 tokens need the memory of one record") {
  constexpr int kTokens = 100'000, kRecords = 8;
  const fsdp::ScratchFolder folder;
  json record = original_record();
  std::string line;
  {
    json tokens = record["document_tokens"];
    std::string list;
    const std::string word = tokens[2].dump();
    for (int i = 0; i < kTokens; ++i) list += word + ",";
    record["document_tokens"] = json::array();
    line = record.dump();
    line.insert(line.find("\"document_tokens\":[") + 19, list + word);
  }
  std::string text;
  for (int i = 0; i < kRecords; ++i) text += line + "\n";
  const auto file = folder.write("long.jsonl", text);
  const auto line_bytes = static_cast<int64_t>(line.size());
  text = {};
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the high-water mark
  const int64_t before = resident("VmRSS");
  NqReader reader(file, {});
  NqRecord read;
  for (int i = 0; i < kRecords; ++i) {
    REQUIRE(reader.next(read));
    CHECK(read.document.size() == kTokens + 1);
  }
  CHECK_FALSE(reader.next(read));
  // A line grows by doubling, which needs up to three times its size. The record is smaller.
  const int64_t grown = resident("VmHWM") - before;
  if (!fsdp::kThreadSanitized) CHECK(grown < 4 * line_bytes);  // its own memory counts too
}

}  // namespace
}  // namespace bert_qa
