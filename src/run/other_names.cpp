#include "run/other_names.h"

#include <algorithm>
#include <array>
#include <span>

namespace fsdp {
namespace {

struct OtherName {
  std::string_view theirs;
  std::string_view flag;   // ours
  std::string_view value;  // with it, if the flag alone says less
};

constexpr std::array kOtherNames{
    OtherName{"--bf16", "--param-dtype", " bfloat16"},
    OtherName{"--fp16", "--param-dtype", " float16"},
    OtherName{"--fsdp", "--strategy", ""},
    OtherName{"--deepspeed", "--strategy", " zero2"},
    OtherName{"--fsdp-config", "--reshard-after-forward", ""},
    OtherName{"--gradient-checkpointing", "--recompute", " 1"},
    OtherName{"--ddp-timeout", "--timeout", ""},
    OtherName{"--use-cpu", "--device", " cpu"},
    OtherName{"--no-cuda", "--device", " cpu"},
    OtherName{"--cpu-offload", "--offload", ""},
};

// Names of one thing: a program has one of them, if any.
constexpr std::array<std::string_view, 6> kBatch{"--per-device-train-batch-size",
                                                 "--per-gpu-train-batch-size",
                                                 "--train-batch-size",
                                                 "--batch-size",
                                                 "--batch",
                                                 "--micro-batch-size"};
constexpr std::array<std::string_view, 4> kEvalBatch{"--per-device-eval-batch-size",
                                                     "--per-gpu-eval-batch-size",
                                                     "--eval-batch-size", "--predict-batch-size"};
constexpr std::array<std::string_view, 6> kLength{"--max-seq-length", "--max-seq-len",
                                                  "--max-length",     "--seq-len",
                                                  "--seq-length",     "--block-size"};
constexpr std::array<std::string_view, 3> kEpochs{"--num-train-epochs", "--num-epochs", "--epochs"};
constexpr std::array<std::string_view, 3> kSteps{"--max-steps", "--max-train-steps", "--steps"};
constexpr std::array<std::string_view, 4> kAccumulation{"--gradient-accumulation-steps",
                                                        "--accumulation-steps",
                                                        "--gradient-accumulation", "--grad-accum"};
constexpr std::array<std::string_view, 2> kRate{"--learning-rate", "--lr"};
constexpr std::array<std::string_view, 2> kSchedule{"--lr-scheduler-type", "--lr-scheduler"};
constexpr std::array<std::string_view, 2> kWarmUp{"--warmup-steps", "--num-warmup-steps"};
constexpr std::array<std::string_view, 3> kModel{"--model-name-or-path", "--model", "--preset"};
constexpr std::array<std::string_view, 3> kVocabulary{"--vocab-file", "--tokenizer-name",
                                                      "--tokenizer"};
constexpr std::array<std::string_view, 3> kTrainFile{"--train-file", "--dataset-name",
                                                     "--train-data"};
constexpr std::array<std::string_view, 5> kQuestions{"--validation-file", "--test-file",
                                                     "--eval-file", "--predict-file", "--dev-file"};
constexpr std::array<std::string_view, 3> kOutput{"--output-dir", "--out-dir", "--save-dir"};
constexpr std::array<std::string_view, 3> kRanks{"--nproc-per-node", "--ranks", "--num-processes"};
constexpr std::array<std::string_view, 3> kHosts{"--nnodes", "--hosts", "--num-machines"};
constexpr std::array<std::span<const std::string_view>, 16> kSameThings{
    kBatch,  kEvalBatch, kLength,     kEpochs,    kSteps,     kAccumulation, kRate,  kSchedule,
    kWarmUp, kModel,     kVocabulary, kTrainFile, kQuestions, kOutput,       kRanks, kHosts};

bool is_in(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::string name_here(std::string_view typed, const std::vector<std::string>& names) {
  const auto other = std::ranges::find(kOtherNames, typed, &OtherName::theirs);
  if (other != kOtherNames.end() && is_in(names, other->flag)) {
    return std::string(other->flag) + std::string(other->value);
  }
  for (const std::span<const std::string_view> things : kSameThings) {
    if (!is_in(things, typed)) continue;
    for (const std::string_view thing : things) {
      if (is_in(names, thing)) return std::string(thing);
    }
  }
  return {};
}

}  // namespace fsdp
