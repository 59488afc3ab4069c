// Tests two engines on one mesh. Their collectives share the mesh's communicators and streams.
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int64_t kWidth = 8;

using Values = std::map<std::string, at::Tensor>;

// Trains a generator and a discriminator against each other. Returns their parameters on rank 0 at
// the end.
Values train_against_each_other(int world, CpuStreamKind streams, bool delays) {
  Values trained;
  run_torch_ranks(world, [&](const Mesh& mesh) {
    const auto make = [] { return Unit<Graph>(3, kWidth, in_a_row); };
    Unit<Graph> generator = build_seeded(1, make);
    Unit<Graph> discriminator = build_seeded(2, make);
    const Options options{.debug = true, .tuning = {.cpu_streams = streams}};
    Engine makes(generator, mesh, options);
    Engine tells(discriminator, mesh, options);
    if (delays) inject_delays(makes, mesh.rank());
    if (delays) inject_delays(tells, mesh.rank() + 1);
    const auto make_step = twin_optimizer(TwinOptimizer::kAdam, makes.parameters());
    const auto tell_step = twin_optimizer(TwinOptimizer::kSgd, tells.parameters());
    for (int step = 0; step < 4; ++step) {
      const at::Tensor noise = values({3, kWidth}, 100 * step + mesh.rank());
      const at::Tensor real = values({3, kWidth}, 100 * step + 50 + mesh.rank());
      const at::Tensor told = (discriminator(real) - 1).square().mean() +
                              discriminator(generator(noise).detach()).square().mean();
      told.backward();
      tell_step->step();
      tell_step->zero_grad();
      (discriminator(generator(noise)) - 1).square().mean().backward();
      make_step->step();
      make_step->zero_grad();
      tell_step->zero_grad();
    }
    Values found = full_parameters(makes);
    for (auto& [fqn, value] : full_parameters(tells)) found["told." + fqn] = value;
    if (mesh.rank() == 0) trained = std::move(found);
  });
  return trained;
}

}  // namespace

TEST_CASE("two engines on one mesh give the same bits with threaded streams as inline") {
  for (const int world : {2, 3}) {
    const Values expected = train_against_each_other(world, CpuStreamKind::kInline, false);
    for (const bool delays : {false, true}) {
      CAPTURE(world);
      CAPTURE(delays);
      const Values found = train_against_each_other(world, CpuStreamKind::kThreaded, delays);
      REQUIRE(found.size() == expected.size());
      for (const auto& [fqn, value] : found) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    }
  }
}

TEST_CASE("engines of one mesh have streams of one kind, while they live") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    Unit<Chain> first = build_seeded(1, [] { return Unit<Chain>(); });
    Unit<Chain> second = build_seeded(2, [] { return Unit<Chain>(); });
    const Options threaded{.tuning = {.cpu_streams = CpuStreamKind::kThreaded}};
    {
      const Engine engine(first, mesh);
      CHECK_THROWS_WITH_AS(Engine(second, mesh, threaded),
                           "two engines of one mesh set different cpu_streams: inline and threaded "
                           "(Options::tuning.cpu_streams); all engines of a mesh share its two "
                           "communication streams; hint: give all engines of a mesh the "
                           "same cpu_streams, or destroy the other engine first",
                           InvalidArgument);
    }
    const Engine engine(second, mesh, threaded);
    loss_of(second, batch_of(0, mesh.rank())).backward();
  });
}
