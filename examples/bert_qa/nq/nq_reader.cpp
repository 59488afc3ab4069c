#include "bert_qa/nq/nq_reader.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>

#include "bert_qa/nq/nq_events.h"

namespace bert_qa {
namespace {

// Checks the spans of a record. Each function throws if it finds a fault.
class RecordCheck {
 public:
  RecordCheck(const NqRecord& record, const std::string& where) : record_(record), where_(where) {}

  void check() const {
    if (record_.question.find_first_not_of(" \t\r\n") == std::string::npos) {
      refuse("question_text is empty");
    }
    for (size_t i = 0; i < record_.candidates.size(); ++i) {
      const NqSpan& span = record_.candidates[i].span;
      const std::string name = fmt::format("long_answer_candidates[{}]", i);
      check_span(span, name);
      if (!span.has_tokens()) refuse(fmt::format("{} has no tokens", name));
    }
    for (size_t i = 0; i < record_.annotations.size(); ++i) {
      check_annotation(record_.annotations[i], fmt::format("annotations[{}]", i));
    }
  }

 private:
  [[noreturn]] void refuse(std::string what) const {
    throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                        {.what = std::move(what),
                         .where = fmt::format("{}, example {}", where_, record_.example_id),
                         .hint = "repair the record, or leave bad records out with "
                                 "--skip-bad-rows"});
  }

  void check_span(const NqSpan& span, const std::string& name) const {
    const auto check = [&](int64_t start, int64_t end, const char* unit) {
      if ((start < 0) != (end < 0) || (start >= 0 && start >= end)) {
        refuse(fmt::format("{} has the {} {} to {}, expected a start below the end, or -1 to -1",
                           name, unit, start, end));
      }
    };
    check(span.start_token, span.end_token, "tokens");
    check(span.start_byte, span.end_byte, "bytes");
    if (span.end_token > record_.document.size()) {
      refuse(fmt::format("{} ends at token {}, but the document has {} tokens", name,
                         span.end_token, record_.document.size()));
    }
  }

  void check_annotation(const NqAnnotation& annotation, const std::string& name) const {
    const NqSpan& answer = annotation.long_answer;
    check_span(answer, name + ".long_answer");
    if (answer.has_tokens() != (annotation.candidate >= 0) ||
        annotation.candidate >= std::ssize(record_.candidates)) {
      refuse(
          fmt::format("{}.long_answer has the tokens {} to {} and the candidate_index {} of {} "
                      "candidates",
                      name, answer.start_token, answer.end_token, annotation.candidate,
                      record_.candidates.size()));
    }
    if (answer.has_tokens()) {
      const NqSpan& candidate = record_.candidates[annotation.candidate].span;
      if (candidate.start_token != answer.start_token || candidate.end_token != answer.end_token) {
        refuse(fmt::format("{}.long_answer has the tokens {} to {}, but its candidate {} to {}",
                           name, answer.start_token, answer.end_token, candidate.start_token,
                           candidate.end_token));
      }
    }
    for (size_t i = 0; i < annotation.short_answers.size(); ++i) {
      const NqSpan& part = annotation.short_answers[i];
      const std::string part_name = fmt::format("{}.short_answers[{}]", name, i);
      check_span(part, part_name);
      if (!part.has_tokens()) refuse(fmt::format("{} has no tokens", part_name));
      if (part.start_token < answer.start_token || part.end_token > answer.end_token) {
        refuse(fmt::format("{} has the tokens {} to {}, which are not in the long answer {} to {}",
                           part_name, part.start_token, part.end_token, answer.start_token,
                           answer.end_token));
      }
    }
    if (annotation.yes_no != YesNo::kNone && !annotation.short_answers.empty()) {
      refuse(fmt::format("{} has both short_answers and the yes_no_answer {}", name,
                         name_of(annotation.yes_no)));
    }
  }

  const NqRecord& record_;
  const std::string& where_;
};

}  // namespace

void parse_nq_record(std::string_view line, const std::string& where, bool need_annotations,
                     NqRecord& record) {
  record.document.clear();
  record.candidates.clear();
  record.annotations.clear();
  NqEvents events(record, need_annotations);
  fsdp::parse_json({.text = line, .file = where, .one_line = true}, events);
  RecordCheck(record, where).check();
}

NqReader::NqReader(const std::filesystem::path& path, const NqReaderOptions& options)
    : path_(path), options_(options), lines_(path) {}

bool NqReader::next(NqRecord& record) {
  for (std::string_view line; lines_.next(line);) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}, line {}", path_.string(), lines_.number());
    try {
      parse_nq_record(line, where, options_.need_annotations, record);
      return true;
    } catch (const fsdp::IoError& error) {
      if (!options_.skip_bad_rows) throw;
      skipped_.push_back(fmt::format("{} is left out: {}", where, error.text().what));
    }
  }
  return false;
}

}  // namespace bert_qa
