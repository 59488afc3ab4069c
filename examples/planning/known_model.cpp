#include "planning/known_model.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <variant>

#include "models/bert/bert_model.h"
#include "models/bert/presets.h"
#include "models/gpt.h"
#include "models/llama.h"
#include "planning/folder_config.h"

namespace planning {
namespace {

constexpr int64_t kWindow = 384;  // usual tokens of a BERT window for questions

// Splits "a, b, c" and adds the family's name to each part.
std::vector<std::string> names_in(const std::string& list, const std::string& family) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(", ", begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    names.push_back(name.starts_with(family) ? name : family + "-" + name);
    begin = end + 2;
  }
  return names;
}

template <class Model, class Config>
auto build_of(const Config& config) {
  return [config](const BatchShape& batch) {
    fsdp::Unit<Model> model(config);
    return BlankModel{model.ptr(), [model, batch]() mutable {
                        return blank_loss(model, batch.sequences, batch.length);
                      }};
  };
}

KnownModel known(const bert::Config& config) {
  return {
      .description = fmt::format("{}: {} layers, hidden {}, {} heads, vocabulary {}",
                                 config.model_type, config.num_hidden_layers, config.hidden_size,
                                 config.num_attention_heads, config.vocab_size),
      .longest = config.max_position_embeddings,
      .attended_width = config.num_hidden_layers * config.hidden_size,
      .counts_samples = true,
      .usual = {.length = std::min(kWindow, config.max_position_embeddings)},
      .unit_options = bert::unit_options,
      .build = build_of<bert::QuestionAnswering>(config),
  };
}

KnownModel known(const gpt::GptConfig& config) {
  return {
      .description = fmt::format("gpt2: {} layers, hidden {}, {} heads, vocabulary {}",
                                 config.layers, config.hidden, config.heads, config.vocabulary),
      .longest = config.block_size,
      .attended_width = config.layers * config.hidden,
      .usual = {.length = config.block_size},
      .build = build_of<gpt::Gpt>(config),
  };
}

KnownModel known(const llama::LlamaConfig& config) {
  return {
      .description = fmt::format("{}: {} layers, hidden {}, {} heads ({} of keys), vocabulary {}",
                                 config.family, config.layers, config.hidden, config.heads,
                                 config.key_value_heads, config.vocabulary),
      .longest = config.longest,
      .attended_width = config.layers * config.heads * config.size_of_head(),
      .usual = {.length = config.longest,
                .device = fsdp::DeviceKind::kCuda,
                .mixed_precision = {.param_dtype = torch::kBFloat16}},
      .unit_options = llama::unit_options,
      .build = build_of<llama::Llama>(config),
  };
}

// Returns a preset. Requires: preset_names() contains the name.
KnownModel known_preset(const std::string& name) {
  const std::string short_name = name.substr(name.find('-') + 1);
  if (name.starts_with("bert-")) return known(bert::preset_config(short_name));
  if (name.starts_with("llama-")) return known(llama::preset_config(short_name));
  return known(gpt::preset_config(name.starts_with("gpt-") ? short_name : name));
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& each :
       {names_in(bert::preset_names(), "bert"), names_in(gpt::preset_names(), "gpt"),
        names_in(llama::preset_names(), "llama")}) {
    names.insert(names.end(), each.begin(), each.end());
  }
  return names;
}

std::unique_ptr<fsdp::Planner> planner_of(const KnownModel& model, const BatchShape& batch) {
  return std::make_unique<fsdp::Planner>([build = model.build, batch] { return build(batch); },
                                         [](BlankModel& blank) { return blank.loss(); });
}

KnownModel find_model(const std::string& preset_or_folder) {
  const std::vector<std::string> names = preset_names();
  const bool is_preset = std::ranges::find(names, preset_or_folder) != names.end();
  std::error_code ignored;
  if (!is_preset && !std::filesystem::is_directory(preset_or_folder, ignored)) {
    const std::string nearest = fsdp::nearest_of(preset_or_folder, names);
    throw fsdp::InvalidArgument(
        {.what = fmt::format("--model '{}' is neither a preset nor a folder", preset_or_folder),
         .hint = (nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest)) +
                 "--help lists the presets"},
        fsdp::ExitCode::kUsage);
  }
  KnownModel model = is_preset ? known_preset(preset_or_folder)
                               : std::visit([](const auto& config) { return known(config); },
                                            read_folder(preset_or_folder));
  model.name = preset_or_folder;
  return model;
}

}  // namespace planning
