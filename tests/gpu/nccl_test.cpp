// Trains on simulated GPUs, one for each rank, with NCCL between them. The bits must be those of
// the CPU, all work must be ordered, and the host must not wait.
#include <doctest/doctest.h>
#include <fsdp/engine.h>
#include <fsdp/error.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/unit_policy.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gpu/support/training.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp::testing;

namespace {

int seeds() {
  const char* text = std::getenv("FSDP_SIM_SEEDS");
  return text == nullptr ? 20 : std::atoi(text);
}

void compare_pairs(SmallModel model) {
  uint32_t seed = 0;
  int number = 0;
  for (const Training& training : covering_trainings(model)) {
    if (seeds() == 1 && number++ % 3 != 0) continue;  // an ordinary run; tools/test sim takes all
    if (training.world == 1) continue;                // one rank uses no NCCL
    const std::string what = describe(training);
    CAPTURE(what);
    // If the number of ranks is a power of two, a division before the sum and one after the sum
    // give the same bits.
    const TrainingResult on_cpu = train_on_cpu(training, /*sums=*/training.world == 3);
    for (int i = 0; i < seeds(); ++i) {
      ++seed;
      CAPTURE(seed);
      const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
          .simulation = {.seed = seed, .devices = training.world}, .nccl = true});
      const TrainingResult by_nccl = train_on_gpu(training, session);
      CHECK(difference(by_nccl, on_cpu) == "");
      if (!training.options.cpu_offload) CHECK(by_nccl.host_waits == 0);  // else the host computes
    }
  }
}

}  // namespace

TEST_CASE("a GPT by NCCL has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kGpt);
}

TEST_CASE("a BERT by NCCL has the CPU's bits, whatever the schedule") {
  compare_pairs(SmallModel::kBert);
}

TEST_CASE("on two hosts of two GPUs a GPT has the CPU's bits, with every strategy") {
  uint32_t seed = 0;
  for (const fsdp::Strategy strategy : kAllStrategies) {
    // By default, each host is a group.
    const Training training{
        .world = 4, .groups = is_by_groups(strategy) ? 2 : 1, .options = {.strategy = strategy}};
    const std::string what = describe(training);
    CAPTURE(what);
    const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
        .simulation = {.seed = ++seed, .devices = 4}, .nccl = true, .hosts = 2});
    const TrainingResult on_hosts = train_on_gpu(training, session);
    CHECK(difference(on_hosts, train_on_cpu(training)) == "");
    CHECK(on_hosts.host_waits == 0);
  }
}

TEST_CASE("a GPT whose parameters are gathered into registered memory has the CPU's bits") {
  uint32_t seed = 0;
  for (const auto registration :
       {fsdp::NcclRegistration::kWindows, fsdp::NcclRegistration::kZeroCta}) {
    for (const int world : {2, 3, 4}) {
      for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
        const Training training{.world = world,
                                .options = {.mixed_precision = {.param_dtype = dtype},
                                            .prefetch_units = world - 2,
                                            .cpu_offload = world == 4,
                                            .tuning = {.nccl_registration = registration}}};
        const std::string what = describe(training);
        CAPTURE(what);
        const auto session = std::make_shared<SimulatedSession>(
            SimulatedRanksOptions{.simulation = {.seed = ++seed, .devices = world}, .nccl = true});
        session->nccl->set_version(fsdp::nccl::kWindowsFrom);
        const TrainingResult registered = train_on_gpu(training, session);
        Training plain = training;
        plain.options.tuning.nccl_registration = fsdp::NcclRegistration::kOff;
        CHECK(difference(registered, train_on_cpu(plain, /*sums=*/world == 3)) == "");
        if (world < 4) CHECK(registered.host_waits == 0);  // else the host computes, too
        const int64_t windows = session->nccl->calls("ncclCommWindowRegister");
        CHECK(windows > 0);
        CHECK(session->nccl->calls("ncclCommWindowDeregister") == windows);
        CHECK(session->nccl->half_registered() == 0);
        CHECK(session->nccl->zero_cta_communicators() ==
              (registration == fsdp::NcclRegistration::kZeroCta ? world : 0));
      }
    }
  }
}

TEST_CASE("memory is not registered where nobody would gain by it, and the reason is said") {
  struct Refused {
    Training training;
    int version;
    std::string reason;
  };
  const auto with = [](fsdp::Strategy strategy) {
    return fsdp::Options{.strategy = strategy,
                         .tuning = {.nccl_registration = fsdp::NcclRegistration::kWindows}};
  };
  for (const auto& [training, version, reason] :
       {Refused{{.options = with(fsdp::Strategy::kFullShard)}, 23007, "NCCL 2.30.7 is too old"},
        Refused{{.options = with(fsdp::Strategy::kZero2)},
                23102,
                "this strategy has no gather buffers"},
        Refused{{.world = 4, .groups = 2, .options = with(fsdp::Strategy::kHybridShard)},
                23102,
                "ranks are in groups"}}) {
    const auto session = std::make_shared<SimulatedSession>(
        SimulatedRanksOptions{.simulation = {.devices = training.world}, .nccl = true});
    session->nccl->set_version(version);
    CHECK_THROWS_WITH_AS(train_on_gpu(training, session), doctest::Contains(reason.c_str()),
                         fsdp::InvalidArgument);
    CHECK(session->nccl->calls("ncclMemAlloc") == 0);
  }
  for (const int world : {1, 2}) {
    const Training training{.world = world, .options = with(fsdp::Strategy::kFullShard)};
    CHECK_THROWS_WITH_AS(train_on_cpu(training), doctest::Contains("these ranks do not use NCCL"),
                         fsdp::InvalidArgument);
  }
}

TEST_CASE(
    "modules that sum over the ranks have a communicator of their own, made with the engine") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    const auto session = std::make_shared<SimulatedSession>(
        SimulatedRanksOptions{.simulation = {.devices = 2}, .nccl = true});
    run_ranks(
        2,
        [&](const fsdp::Mesh& mesh) {
          const auto made = [&] {
            return session->nccl->calls("ncclCommInitRankConfig", mesh.rank());
          };
          CHECK(made() == 2);
          torch::nn::Sequential model(torch::nn::Linear(4, 4));
          if (sums) model->push_back(fsdp::SyncBatchNorm(4, mesh));
          fsdp::Engine engine(model.ptr(), mesh, {.units = fsdp::each_child_of("")});
          CHECK(made() == (sums ? 3 : 2));
          const at::Tensor x = torch::ones({3, 4}) * (mesh.rank() + 1);
          engine.forward([&](const at::Tensor& in) { return model->forward(in); }, x)
              .sum()
              .backward();
          CHECK(made() == (sums ? 3 : 2));
        },
        on_simulated_gpu(session));
  }
}
