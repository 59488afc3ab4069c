// One rank that trains a tiny BERT and does a fault at a named place. benchmarks/faults starts it.
//   fsdp-run -n 3 training_rank STEPS TIMEOUT_MS [FAULT RANK STEP PHASE INDEX DELAY_US]
// FAULT: kill, segv, abort, exit, throw or stop. PHASE: forward, gather, backward, reduce or
// optimizer. It happens at the INDEX-th time that RANK enters PHASE in STEP; signals are raised
// DELAY_US later, from another thread. Rank 0 prints each step's loss and gradient norm; RANK
// prints a line before its fault. TRAINING_PRESET, TRAINING_PREFETCH, TRAINING_STRATEGY (its
// number), TRAINING_SHARD (ranks of a group), TRAINING_RECOMPUTE and TRAINING_OFFLOAD (0 or 1)
// configure the training; TRAINING_DEVICE=cuda runs it on GPUs.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bert_qa/run/batch.h"
#include "bert_qa/squad/synthetic_qa.h"
#include "models/bert/bert_model.h"
#include "models/bert/presets.h"

namespace {

const std::map<std::string_view, std::string_view> kPhaseOfEvent{{"unshard", "gather"},
                                                                 {"forward", "forward"},
                                                                 {"pre_backward", "backward"},
                                                                 {"reduce", "reduce"}};

struct Fault {
  std::string what;
  int rank = -1;
  int64_t step = -1;
  std::string phase;
  int64_t index = 0;
  std::chrono::microseconds delay{0};
};

void say_hit() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  fmt::print("hit {}\n", std::chrono::duration<double>(now).count());
  std::fflush(stdout);
}

void commit(const Fault& fault) {
  const std::map<std::string, int> signals{{"kill", SIGKILL}, {"segv", SIGSEGV}, {"stop", SIGSTOP}};
  if (const auto signal = signals.find(fault.what); signal != signals.end()) {
    std::thread([delay = fault.delay, number = signal->second] {
      std::this_thread::sleep_for(delay);
      say_hit();
      kill(getpid(), number);
    }).detach();
    return;
  }
  say_hit();
  if (fault.what == "abort") std::abort();
  if (fault.what == "exit") std::exit(0);
  if (fault.what == "throw") throw std::runtime_error("an injected exception");
  throw fsdp::InvalidArgument({.what = "no fault is called " + fault.what}, fsdp::ExitCode::kUsage);
}

// Counts how often this rank entered the fault's phase in the current step, and causes the fault at
// the chosen time.
class Harm {
 public:
  Harm(Fault fault, int rank) : fault_(std::move(fault)), mine_(fault_.rank == rank) {}
  void begin_step(int64_t step) {
    due_ = mine_ && step == fault_.step;
    count_ = 0;
  }
  void come_to(std::string_view phase) {
    if (due_ && phase == fault_.phase && count_++ == fault_.index) commit(fault_);
  }

 private:
  Fault fault_;
  bool mine_;
  bool due_ = false;
  int64_t count_ = 0;
};

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

int train(const fsdp::Mesh& mesh, fsdp::ErrorPlace& place, int64_t steps, const Fault& fault) {
  at::set_num_threads(1);
  const char* preset = std::getenv("TRAINING_PRESET");
  fsdp::BuildScope building(
      mesh, {.prefetch_units = number_in("TRAINING_PREFETCH", 1),
             .recompute = number_in("TRAINING_RECOMPUTE", 0),
             .cpu_offload = number_in("TRAINING_OFFLOAD", 0) != 0,
             .strategy = static_cast<fsdp::Strategy>(number_in("TRAINING_STRATEGY", 0)),
             .unit_options = bert::unit_options});
  fsdp::Unit<bert::QuestionAnswering> model(
      bert::preset_config(preset != nullptr ? preset : "tiny"));
  fsdp::Engine engine(model, building);
  fsdp::AdamW optimizer(engine, {.lr = 1e-3});
  const bert_qa::SyntheticQa windows({.min_length = 32, .max_length = 32});
  Harm harm(fault, mesh.rank());
  engine.observe_events([&](std::string_view event, std::string_view) {
    const auto phase = kPhaseOfEvent.find(event);
    if (phase != kPhaseOfEvent.end()) harm.come_to(phase->second);
  });
  for (place.step = 1; place.step <= steps; ++place.step) {
    harm.begin_step(place.step);
    const int64_t window = (place.step * mesh.world_size() + mesh.rank()) % windows.window_count();
    const auto batch = bert_qa::make_tensors(windows.make_batch(0, std::array{window}));
    const auto here = [&](const at::Tensor& tensor) { return tensor.to(engine.device()); };
    const at::Tensor logits =
        model(here(batch.ids_BS), here(batch.segments_BS), here(batch.attention_mask_BS)).span_BS2;
    const at::Tensor loss = bert::span_loss_sum(logits, here(batch.first_B), here(batch.last_B));
    loss.backward();
    harm.come_to("optimizer");
    const double norm = optimizer.clip_grad_norm(1.0).norm();
    harm.come_to("optimizer");
    optimizer.step();
    harm.come_to("optimizer");
    optimizer.zero_grad();
    if (mesh.rank() != 0) continue;
    fmt::print("step {} loss {:a} norm {:a}\n", place.step, loss.item<double>(), norm);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Processes die on purpose here, so they write no core files.
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 2 && words.size() != 8) {
    fmt::print(stderr, "training_rank STEPS TIMEOUT_MS [FAULT RANK STEP PHASE INDEX DELAY_US]\n");
    return static_cast<int>(fsdp::ExitCode::kUsage);
  }
  Fault fault;
  if (words.size() == 8) {
    fault = {.what = words[2],
             .rank = std::stoi(words[3]),
             .step = std::stoll(words[4]),
             .phase = words[5],
             .index = std::stoll(words[6]),
             .delay = std::chrono::microseconds(std::stoll(words[7]))};
  }
  const char* shard = std::getenv("TRAINING_SHARD");
  const char* device = std::getenv("TRAINING_DEVICE");
  const bool on_gpus = device != nullptr && std::string_view(device) == "cuda";
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace& place) {
        return train(mesh, place, std::stoll(words[0]), fault);
      },
      {.device = on_gpus ? fsdp::DeviceKind::kCuda : fsdp::DeviceKind::kCpu,
       .shard = shard != nullptr ? std::atoi(shard) : 0,
       .timeout = std::chrono::milliseconds(std::stoll(words[1]))});
}
