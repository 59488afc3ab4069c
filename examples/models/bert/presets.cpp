#include "models/bert/presets.h"

#include <array>

#include "models/preset_table.h"

namespace bert {
namespace {

struct Preset {
  const char* name;
  int64_t layers, hidden;
  int64_t heads;
  const char* model_type = "bert";
};

// The last three models are pre-LN, because post-LN models stop improving above about 0.7 billion
// parameters.
constexpr std::array kPresets = {
    Preset{"tiny", 2, 128, 2},
    Preset{"mini", 4, 256, 4},
    Preset{"small", 4, 512, 8},
    Preset{"medium", 8, 512, 8},
    Preset{"base", 12, 768, 12},
    Preset{"large", 24, 1024, 16},
    Preset{"0.8b", 24, 1600, 25, "megatron-bert"},
    Preset{"1.3b", 24, 2048, 32, "megatron-bert"},
    Preset{"3.9b", 48, 2560, 40, "megatron-bert"},
};

}  // namespace

std::string preset_names() { return presets::names_of(kPresets); }

Config preset_config(const std::string& name) {
  const Preset& preset = presets::find(kPresets, name);
  return {.model_type = preset.model_type,
          .hidden_size = preset.hidden,
          .num_hidden_layers = preset.layers,
          .num_attention_heads = preset.heads,
          .intermediate_size = 4 * preset.hidden};
}

}  // namespace bert
