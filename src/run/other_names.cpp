#include "run/other_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace fsdp {
namespace {

// A hint for flags of other programs. `theirs` are names separated by spaces. A name that ends in
// '*' matches every name that begins with the characters before it. If `needs` is not empty, the
// hint applies only to programs that have the flag `needs`.
struct OtherNames {
  std::string_view theirs, needs, hint;
};

// The first matching row is used, so "--ddp-*" is below the rows with whole names.
constexpr std::array kOtherNames{
    OtherNames{"--bf16", "--param-dtype", "use --param-dtype bfloat16"},
    OtherNames{"--fp16", "--param-dtype", "use --param-dtype float16"},
    OtherNames{"--bf16-full-eval --fp16-full-eval --fp16-backend --fp16-opt-level "
               "--half-precision-backend",
               "--param-dtype", "use --param-dtype, which sets the type of forward and backward"},
    OtherNames{"--tf32", "", "set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 in the environment"},
    OtherNames{"--fsdp --sharded-ddp", "--strategy", "use --strategy"},
    OtherNames{
        "--fsdp-config", "--strategy",
        "use flags for its keys: --reshard-after-forward, --prefetch, --recompute, --offload"},
    OtherNames{"--fsdp-min-num-params --fsdp-transformer-layer-cls-to-wrap", "--strategy",
               "leave it out: the program chooses its units (Unit, UnitPolicy)"},
    OtherNames{"--deepspeed", "--strategy", "use --strategy: full-shard for stage 3, zero2, zero1"},
    OtherNames{"--accelerator-config --parallelism-config", "--strategy",
               "use --strategy, --shard, --replicate"},
    OtherNames{"--gradient-checkpointing --activation-checkpointing", "--recompute",
               "use --recompute 1"},
    OtherNames{"--gradient-checkpointing-kwargs --activation-checkpointing-kwargs", "--recompute",
               "use --recompute N, which has no other settings"},
    OtherNames{"--ddp-timeout", "--timeout", "use --timeout"},
    OtherNames{"--ddp-backend", "--device",
               "leave it out: the device decides (NCCL, or the host's memory)"},
    OtherNames{"--ddp-*", "--strategy", "leave it out: gradients are reduced unit by unit"},
    OtherNames{"--use-cpu --no-cuda", "--device", "use --device cpu"},
    OtherNames{"--use-mps-device --xpu-backend --tpu-*", "--device",
               "use --device: ranks compute on CUDA GPUs or on the CPU"},
    OtherNames{"--cpu-offload", "--offload", "use --offload"},
    OtherNames{"--data-seed --full-determinism", "--seed", "use --seed, which seeds everything"},
    OtherNames{"--warmup-ratio", "--warmup-steps", "use --warmup-steps"},
    OtherNames{"--local-rank", "", "leave it out: the launcher's environment sets it"},
    OtherNames{"--auto-find-batch-size", "", "use fsdp-plan --memory to see what fits"},
    OtherNames{"--optim --optim-args --optim-target-modules --adafactor", "",
               "leave it out: the program chooses its optimizer"},
    OtherNames{"--eval-delay --eval-on-start --evaluation-strategy --evaluate-during-training",
               "--eval-strategy", "use --eval-strategy"},
    OtherNames{"--eval-strategy --eval-steps --eval-delay --eval-on-start --evaluation-strategy "
               "--evaluate-during-training --load-best-model-at-end --metric-for-best-model "
               "--greater-is-better",
               "", "evaluate the written model: nothing is evaluated during training"},
    OtherNames{"--save-strategy", "--save-steps", "use --save-steps; 0: none"},
    OtherNames{"--save-on-each-node --save-safetensors --ignore-data-skip "
               "--restore-callback-states-from-checkpoint --enable-jit-checkpoint",
               "--save-steps", "leave it out: checkpoints are whole, and in one shared folder"},
    OtherNames{"--resume --resume-* --checkpoint --checkpoint-* --save-strategy --save-steps "
               "--save-total-limit --save-only-model --save-on-each-node --save-safetensors "
               "--enable-jit-checkpoint --ignore-data-skip "
               "--restore-callback-states-from-checkpoint",
               "", "leave it out: the program saves no checkpoints"},
    OtherNames{"--eval-accumulation-steps --eval-do-concat-batches --eval-use-gather-object "
               "--batch-eval-metrics --include-for-metrics --include-inputs-for-metrics "
               "--prediction-loss-only --use-legacy-prediction-loop --remove-unused-columns "
               "--label-names --past-index",
               "", "leave it out: the program knows its own outputs"},
    OtherNames{"--torch-compile --torch-compile-* --torchdynamo --jit-mode-eval --use-ipex "
               "--use-liger-kernel --liger-kernel-config",
               "", "leave it out: nothing is compiled"},
    OtherNames{"--torch-empty-cache-steps --average-tokens-across-devices --label-smoothing-factor "
               "--neftune-noise-alpha --use-cache --lr-scheduler-kwargs --mp-parameters "
               "--ray-scope --debug --skip-memory-metrics",
               "", "leave it out: the program has no such option"},
    OtherNames{"--log-level-replica --log-on-each-node --logging-dir "
               "--logging-strategy --logging-first-step --logging-nan-inf-filter "
               "--include-num-input-tokens-seen --include-tokens-per-second --disable-tqdm "
               "--report-to --run-name --project --trackio-*",
               "", "leave it out: the program chooses what it logs"},
    OtherNames{"--dataloader-num-workers --dataloader-pin-memory --dataloader-persistent-workers "
               "--dataloader-prefetch-factor --dataloader-multiprocessing-context "
               "--dataloader-in-order --dispatch-batches --split-batches",
               "", "leave it out: each rank prepares its own batches ahead"},
    OtherNames{"--group-by-length --length-column-name --train-sampling-strategy", "",
               "leave it out: an epoch is in random order"},
    OtherNames{"--push-to-hub --push-to-hub-* --hub-* --cache-dir --model-revision --token "
               "--use-auth-token --trust-remote-code",
               "", "use folders: nothing is downloaded or uploaded"},
    OtherNames{"--rdzv-*", "--nproc-per-node", "use --master-addr and --master-port"},
    OtherNames{"--standalone --no-python", "--nproc-per-node",
               "leave it out: fsdp-run always works this way"},
};

// Names of one setting in different programs. A program has at most one name of each list. This
// name is the hint for the other names.
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

bool is_one_of(std::string_view list, std::string_view typed) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(' ', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    if (name == typed) return true;
    if (name.ends_with('*') && typed.starts_with(name.substr(0, name.size() - 1))) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::string other_name_hint(std::string_view typed, const std::vector<std::string>& names) {
  for (const std::span<const std::string_view> things : kSameThings) {
    if (!is_in(things, typed)) continue;
    // The lists of kSameThings are searched before kOtherNames, because the hint is then the
    // program's own flag.
    for (const std::string_view thing : things) {
      if (is_in(names, thing)) return fmt::format("use {}", thing);
    }
  }
  for (const OtherNames& other : kOtherNames) {
    if (!other.needs.empty() && !is_in(names, other.needs)) continue;
    if (is_one_of(other.theirs, typed)) return std::string(other.hint);
  }
  return {};
}

}  // namespace fsdp
