#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Result {
  std::vector<float> losses;
  std::map<std::string, at::Tensor> parameters;
};

constexpr int kSteps = 4;

// Returns rank 0's result of a sharded training with plain SGD on the flat shards.
Result train_sharded(int world, const Options& options, int micro_batches = 1) {
  Result result;
  run_torch_ranks(world, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 3); });
    Engine engine(model, mesh, options);
    torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.5));
    for (int step = 0; step < kSteps; ++step) {
      for (int micro = 0; micro < micro_batches; ++micro) {
        const at::Tensor loss = loss_of(model, batch_of(step * micro_batches + micro, mesh.rank()));
        loss.backward();
        if (mesh.rank() == 0) result.losses.push_back(loss.item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result.parameters = std::move(parameters);
  });
  return result;
}

Result train_plain(int world, int micro_batches = 1) {
  Result result;
  auto model = build_seeded(7, [] { return Unit<Chain>(8, 3); });
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> sums;
    for (int micro = 0; micro < micro_batches; ++micro) {
      mean_gradients(*model, world, [&](int rank) {
        const at::Tensor loss = loss_of(model, batch_of(step * micro_batches + micro, rank));
        loss.backward();
        if (rank == 0) result.losses.push_back(loss.item<float>());
      });
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const at::Tensor gradient = model->parameters()[i].grad().clone();
        if (micro == 0) {
          sums.push_back(gradient);
        } else {
          sums[i] += gradient;
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) model->parameters()[i].mutable_grad() = sums[i];
    optimizer.step();
    optimizer.zero_grad();
  }
  result.parameters = plain_parameters(*model);
  return result;
}

void check_bit_equal(const Result& sharded, const Result& plain) {
  CHECK(sharded.losses == plain.losses);
  REQUIRE(sharded.parameters.size() == plain.parameters.size());
  for (const auto& [fqn, value] : plain.parameters) {
    CAPTURE(fqn);
    CHECK(bit_equal(sharded.parameters.at(fqn), value));
  }
}

}  // namespace

TEST_CASE("training on 1, 2, 3 and 5 ranks gives the plain model's bits") {
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    const Result plain = train_plain(world);
    for (const bool reshard : {true, false}) {
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(world + prefetch + (reshard ? 1 : 0))) continue;
        for (const CpuStreamKind streams : every_stream_kind()) {
          CAPTURE(reshard);
          CAPTURE(prefetch);
          check_bit_equal(train_sharded(world, {.reshard_after_forward = reshard,
                                                .prefetch_units = prefetch,
                                                .debug = true,
                                                .tuning = {.cpu_streams = streams}}),
                          plain);
        }
      }
    }
  }
}

TEST_CASE("training in every row of the placement table gives the plain model's bits") {
  for (const int world : {1, 2, 3, 5}) {
    const Result plain = train_plain(world);
    for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero1, Strategy::kReplicate}) {
      for (const int prefetch : {0, 2}) {
        if (!is_tried(world + prefetch / 2)) continue;
        for (const CpuStreamKind streams : every_stream_kind()) {
          CAPTURE(world);
          CAPTURE(static_cast<int>(strategy));
          check_bit_equal(train_sharded(world, {.prefetch_units = prefetch,
                                                .strategy = strategy,
                                                .debug = true,
                                                .tuning = {.cpu_streams = streams}}),
                          plain);
        }
      }
    }
  }
}

TEST_CASE("micro-batches that reduce each time add up to the plain model's bits") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const Result plain = train_plain(world, 3);
    for (const Strategy strategy : kStrategies) {
      check_bit_equal(train_sharded(world, {.strategy = strategy, .debug = true}, 3), plain);
    }
  }
}
