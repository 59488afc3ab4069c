#include "bert_qa/squad/squad_dataset.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>
#include <fsdp/whole_file.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "bert_qa/squad/squad_events.h"
#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Returns true if the text has one object on each line. The first line must begin and end like an
// object, and another object must follow it.
bool has_one_object_a_line(std::string_view text) {
  const std::string_view all = trimmed(text);
  const size_t end = all.find('\n');
  if (end == std::string_view::npos) return false;
  const std::string_view first = trimmed(all.substr(0, end));
  return first.starts_with('{') && first.ends_with('}') &&
         trimmed(all.substr(end)).starts_with('{');
}

void read_lines(std::string_view text, const std::string& name, SquadEvents& events) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (!trimmed(line).empty()) {
      // first_byte: errors count bytes from the start of the file.
      fsdp::parse_json({.text = line,
                        .file = fmt::format("{}, line {}", name, number),
                        .first_byte = static_cast<int64_t>(at),
                        .one_line = true},
                       events);
    }
    at = end + 1;
  }
}

// Returns the reason why an answer is not at its offset, or nothing if it is there.
std::optional<std::string> misplaced(const QaAnswer& answer, const std::string& context) {
  if (answer.start < 0) {
    return fmt::format("answer_start is {}, expected 0 or more (in code points)", answer.start);
  }
  const std::string_view found =
      code_point_slice(context, answer.start, answer.start + count_code_points(answer.text));
  if (found == answer.text) return std::nullopt;
  return fmt::format("expected the answer {} at code point {} of its context, got {}",
                     fsdp::quoted_name(answer.text), answer.start,
                     found.empty() ? "nothing" : fsdp::quoted_name(found));
}

std::optional<std::string> fault_of(const SquadEvents::Row& row, const std::string& context,
                                    const SquadOptions& options) {
  const auto& answers = row.question.answers;
  if (options.need_answers && !row.without_answers.empty()) return row.without_answers;
  if (row.impossible && !answers.empty()) return "is_impossible is true, but there is an answer";
  if (!options.check_answers) return std::nullopt;
  for (const QaAnswer& answer : answers) {
    if (answer.text.empty()) return "an answer is empty";
    if (auto reason = misplaced(answer, context)) return reason;
  }
  return std::nullopt;
}

}  // namespace

int64_t QaDataset::unanswerable_count() const {
  return std::count_if(questions.begin(), questions.end(),
                       [](const QaQuestion& question) { return question.answers.empty(); });
}

QaDataset read_squad(const std::filesystem::path& path, const SquadOptions& options) {
  return parse_squad(fsdp::read_file(path), path.string(), options);
}

QaDataset parse_squad(std::string_view text, const std::string& name, const SquadOptions& options) {
  SquadEvents events;
  if (has_one_object_a_line(text)) {
    read_lines(text, name, events);
  } else {
    fsdp::parse_json({.text = text, .file = name}, events);
  }
  if (events.rows.empty()) {
    throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                        {.what = "the file contains no questions",
                         .where = name,
                         .hint = "use SQuAD v1.1 or v2.0, or one flat JSON object per line"});
  }
  QaDataset dataset{.contexts = std::move(events.contexts)};
  std::unordered_set<std::string> ids;
  for (SquadEvents::Row& row : events.rows) {
    auto fault = fault_of(row, dataset.contexts[row.question.context], options);
    if (!fault && !ids.insert(row.question.id).second) fault = "another question has the same id";
    if (!fault) {
      dataset.questions.push_back(std::move(row.question));
    } else if (options.skip_bad_rows) {
      dataset.skipped.push_back({row.question.id, *fault});
    } else {
      throw fsdp::IoError(
          fsdp::ExitCode::kCorruptData,
          {.what = *fault,
           .where = fmt::format("{}, question {}", name, fsdp::quoted_name(row.question.id)),
           .hint = "repair the row, or leave bad rows out with --skip-bad-rows"});
    }
  }
  return dataset;
}

}  // namespace bert_qa
