#include "bert_qa/hf/weight_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace bert_qa {
namespace {

bool is_unused(std::string_view name) {
  return name.starts_with("cls.") || name.starts_with("bert.pooler.") ||
         name == "bert.embeddings.position_ids";
}

bool is_old_norm(std::string_view stored) {
  return stored.ends_with(".gamma") || stored.ends_with(".beta");
}

}  // namespace

std::string current_name(std::string_view stored) {
  std::string name(stored);
  for (const char* part : {"embeddings.", "encoder.", "pooler."}) {
    if (stored.starts_with(part)) name = fmt::format("bert.{}", stored);
  }
  if (name.ends_with(".gamma")) name.replace(name.size() - 5, 5, "weight");
  if (name.ends_with(".beta")) name.replace(name.size() - 4, 4, "bias");
  return name;
}

bool is_head(std::string_view fqn) { return fqn.starts_with("qa_outputs."); }

fsdp::LoadOptions load_options(const fsdp::SafetensorsFile* head) {
  return {.parameter_name = current_name,
          .may_be_unused = is_unused,
          .may_be_missing = is_head,
          .instead = head};
}

fsdp::LoadOptions head_options() {
  return {.may_be_unused = [](std::string_view) { return true; },
          .may_be_missing = [](std::string_view fqn) { return !is_head(fqn); }};
}

std::vector<std::string> notes_of(const fsdp::LoadReport& report) {
  std::vector<std::string> notes;
  const auto old_norms = std::ranges::count_if(report.renamed, is_old_norm);
  if (old_norms > 0) {
    notes.push_back(fmt::format("{} tensor{} named gamma or beta read as weight or bias", old_norms,
                                old_norms == 1 ? "" : "s"));
  }
  notes.insert(notes.end(), report.notes.begin(), report.notes.end());
  return notes;
}

}  // namespace bert_qa
