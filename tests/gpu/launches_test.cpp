// Counts the launches, event records and waits of a step, and of one more layer. They determine the
// host's time, and a simulated GPU counts them exactly. The table is launches.txt in this folder.
#include <fmt/format.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "libtorch/torch_compat.h"
#include "models/bert/bert_model.h"
#include "simulator/torch/simulated_ranks.h"
#include "support/sanitizers.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kCountedRanks = 2;
const std::set<std::string> kCalls{"cudaEventRecord", "cudaStreamWaitEvent",
                                   "cudaStreamSynchronize", "cudaMalloc", "cudaHostAlloc"};

// Counts by kind. Kernels and collectives are those of rank 0, by stream. Calls of the host are per
// rank.
using Counts = std::map<std::string, int64_t>;

// A layer has 16 gradients. Those of its 6 matrices have 256 KiB each in float32, so they count as
// large.
bert::Config config_of(int64_t layers) {
  bert::Config config{.hidden_dropout_prob = 0, .attention_probs_dropout_prob = 0};
  config.vocab_size = 60;
  config.hidden_size = 256;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 4;
  config.intermediate_size = 256;
  config.max_position_embeddings = 16;
  return config;
}

void count_calls(const SimulatedSession& session, int sign, Counts& counts) {
  for (const std::string& name : kCalls) counts[name] += sign * session.gpu.calls(name);
}

// Counts kernels without their template arguments. LibTorch's operators do not run as kernels here.
void count_operations(const SimulatedSession& session, size_t begin, size_t end, Counts& counts) {
  std::set<std::string> ours{"copy", "set", "nccl"};
  for (const sim::LaunchRecord& launch : session.gpu.launches()) ours.insert(launch.kernel);
  const std::lock_guard lock(sim::runtime_mutex());
  const auto& operations = session.gpu.simulation().log().all();
  for (size_t i = begin; i < end; ++i) {
    const std::string& stream = operations[i].stream->name;
    const std::string& name = operations[i].name;
    const size_t of = stream.find(" of rank 0");
    if (of == std::string::npos || !ours.contains(name)) continue;
    ++counts[fmt::format("{}: {}", stream.substr(0, of), name.substr(0, name.find('<')))];
  }
}

size_t operations_so_far(const SimulatedSession& session) {
  const std::lock_guard lock(sim::runtime_mutex());
  return session.gpu.simulation().log().all().size();
}

// Counts the second step. Later steps have the same counts.
Counts counts_of_step(int64_t layers, at::ScalarType dtype) {
  const auto session = std::make_shared<SimulatedSession>(
      SimulatedRanksOptions{.simulation = {.devices = kCountedRanks}, .nccl = true});
  Counts counts;
  size_t begin = 0, end = 0;
  run_ranks(
      kCountedRanks,
      [&](const Mesh& mesh) {
        auto unit =
            build_seeded(7, [&] { return Unit<bert::QuestionAnswering>(config_of(layers)); });
        Engine engine(unit.ptr(), mesh,
                      {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype}});
        AdamW optimizer(engine, {});
        const at::Tensor ids = torch::ones({2, 8}, torch::kLong).to(engine.device());
        const auto count = [&](int sign, size_t& operations) {
          mesh.agree("step", {});
          if (mesh.rank() == 0) {
            count_calls(*session, sign, counts);
            operations = operations_so_far(*session);
          }
          mesh.agree("counted", {});
        };
        for (int step = 0; step < 2; ++step) {
          if (step == 1) count(-1, begin);
          const at::Tensor logits =
              unit(ids, torch::zeros_like(ids), torch::ones_like(ids)).span_BS2;
          logits.to(torch::kFloat).sum().backward();
          optimizer.clip_grad_norm(1.0);
          optimizer.step();
          optimizer.zero_grad();
        }
        count(1, end);
      },
      on_simulated_gpu(session));
  for (auto& [name, number] : counts) {
    CHECK(number % kCountedRanks == 0);
    number /= kCountedRanks;
  }
  count_operations(*session, begin, end, counts);
  return counts;
}

std::string table_of(at::ScalarType dtype) {
  const Counts two = counts_of_step(2, dtype), three = counts_of_step(3, dtype);
  std::string text = fmt::format("{}\n", torch_compat::type_name(dtype));
  for (const auto& [name, number] : two) {
    text += fmt::format("  {:<42}{:>6}{:>8}\n", name, number, three.at(name) - number);
  }
  return text;
}

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE(
    "what a step issues, and a layer adds, is as in launches.txt" *
    doctest::skip(kThreadSanitized)) {  // the counts are the same, but it takes over ten minutes
  const std::string committed = text_of(LAUNCHES_TABLE);
  std::string found;
  std::istringstream lines(committed);
  for (std::string line; std::getline(lines, line) && line.starts_with("#");) found += line + "\n";
  for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) found += table_of(dtype);
  if (std::getenv("FSDP_UPDATE_LAUNCHES") != nullptr) std::ofstream(LAUNCHES_TABLE) << found;
  INFO("if that is meant: FSDP_UPDATE_LAUNCHES=1 gpu_tests -tc='what a step issues*'");
  CHECK(found == committed);
}
