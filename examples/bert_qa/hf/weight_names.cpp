#include "bert_qa/hf/weight_names.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <array>

namespace bert_qa {
namespace {

bool is_unused(std::string_view name) {
  return name.starts_with("cls.") || name.starts_with("bert.pooler.") ||
         name == "bert.embeddings.position_ids";
}

bool is_span_head(std::string_view fqn) { return fqn.starts_with("qa_outputs."); }

bool is_old_norm(std::string_view stored) {
  return stored.ends_with(".gamma") || stored.ends_with(".beta");
}

// Removes the prefixes that DataParallel, torch.compile and wrappers add to all names. Wrappers can
// be nested.
std::string_view without_wrappers(std::string_view stored) {
  constexpr std::array<std::string_view, 3> kWrappers{"module.", "_orig_mod.", "model."};
  for (const std::string_view wrapper : kWrappers) {
    if (stored.starts_with(wrapper)) return without_wrappers(stored.substr(wrapper.size()));
  }
  return stored;
}

}  // namespace

std::string current_name(std::string_view stored) {
  stored = without_wrappers(stored);
  std::string name(stored);
  for (const char* part : {"embeddings.", "encoder.", "pooler."}) {
    if (stored.starts_with(part)) name = fmt::format("bert.{}", stored);
  }
  if (name.ends_with(".gamma")) name.replace(name.size() - 5, 5, "weight");
  if (name.ends_with(".beta")) name.replace(name.size() - 4, 4, "bias");
  return name;
}

bool is_head(std::string_view fqn) {
  return is_span_head(fqn) || fqn.starts_with("bert.pooler.") || fqn.starts_with("classifier.");
}

fsdp::LoadOptions load_options(const fsdp::SafetensorsFile* head) {
  return {.parameter_name = current_name,
          .may_be_unused = is_unused,
          .may_be_missing = is_head,
          .instead = head};
}

fsdp::LoadOptions head_options() {
  return {.may_be_unused = [](std::string_view) { return true; },
          .may_be_missing = [](std::string_view fqn) { return !is_span_head(fqn); }};
}

std::vector<std::string> notes_of(const fsdp::LoadReport& report) {
  std::vector<std::string> notes;
  const auto old_norms = std::ranges::count_if(report.renamed, is_old_norm);
  if (old_norms > 0) {
    notes.push_back(
        fmt::format("{} tensor{} with the old name gamma or beta: loaded as weight or bias",
                    old_norms, old_norms == 1 ? "" : "s"));
  }
  const auto is_wrapped = [](const std::string& stored) {
    return without_wrappers(stored).size() < stored.size();
  };
  const auto wrapped = std::ranges::count_if(report.renamed, is_wrapped);
  if (wrapped > 0) {
    const std::string& first = *std::ranges::find_if(report.renamed, is_wrapped);
    const std::string before = first.substr(0, first.size() - without_wrappers(first).size());
    notes.push_back(fmt::format("{} tensor{} with the prefix {}: loaded without it", wrapped,
                                wrapped == 1 ? "" : "s", fsdp::quoted_name(before)));
  }
  notes.insert(notes.end(), report.notes.begin(), report.notes.end());
  return notes;
}

}  // namespace bert_qa
