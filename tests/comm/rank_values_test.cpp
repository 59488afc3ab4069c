#include "fsdp/rank_values.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "support/run_ranks.h"

namespace fsdp {
namespace {

TEST_CASE("sums, means and maxima are the same on every rank") {
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    testing::run_ranks(world, [&](const Mesh& mesh) {
      const double mine = 1.5 * (mesh.rank() + 1);
      const double sum = 1.5 * world * (world + 1) / 2;
      CHECK(sum_over_ranks(mesh, mine) == sum);
      CHECK(mean_over_ranks(mesh, mine) == sum / world);
      CHECK(max_over_ranks(mesh, -mine) == -1.5);
      CHECK(max_over_ranks(mesh, int64_t{1} << (60 - mesh.rank())) == int64_t{1} << 60);
    });
  }
}

TEST_CASE("a maximum is NaN if any rank's value is") {
  testing::run_ranks(2, [](const Mesh& mesh) {
    const double mine = mesh.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    CHECK(std::isnan(max_over_ranks(mesh, mine)));
  });
}

TEST_CASE("gathered values lie in rank order") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const std::array<float, 2> mine = {static_cast<float>(mesh.rank()), 0.5F};
    CHECK(gather_from_ranks(mesh, mine) == std::vector<float>{0, 0.5F, 1, 0.5F, 2, 0.5F});
    CHECK(gather_from_ranks(mesh, {}).empty());
  });
}

TEST_CASE("ranks that ask for different values are told both labels") {
  const auto errors = testing::errors_of_ranks(2, [](const Mesh& mesh) {
    sum_over_ranks(mesh, 1.0, mesh.rank() == 0 ? "loss" : "windows");
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("'loss'") != std::string::npos);
    CHECK(error.find("'windows'") != std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp
