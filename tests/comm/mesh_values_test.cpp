#include "fsdp/mesh_values.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/run_ranks.h"

namespace fsdp {
namespace {

// A class that is no tensor but has the members of a tensor that Mesh uses.
struct AlmostTensor {
  std::vector<float> elements;
  int64_t numel() const { return static_cast<int64_t>(elements.size()); }
  template <class T>
  T item() const {
    return static_cast<T>(elements.front());
  }
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("sums, means and maxima are the same on every rank") {
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    testing::run_ranks(world, [&](const Mesh& mesh) {
      const double mine = 1.5 * (mesh.rank() + 1);
      const double sum = 1.5 * world * (world + 1) / 2;
      CHECK(mesh.sum(mine) == sum);
      CHECK(mesh.sum(static_cast<float>(mine)) == sum);
      CHECK(mesh.mean(mine) == sum / world);
      CHECK(mesh.max(-mine) == -1.5);
    });
  }
}

TEST_CASE("whole numbers of any type are exact, their mean is a double") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const auto rank = static_cast<uint8_t>(mesh.rank());
    const int64_t large = (int64_t{1} << 60) + 1;  // a double cannot represent this value
    CHECK(mesh.max(large - rank) == large);
    CHECK(mesh.sum(large) == 3 * large);
    CHECK(mesh.sum(rank) == 3);
    CHECK(mesh.sum(size_t{rank}) == 3);
    CHECK(mesh.sum(rank > 0) == 2);
    CHECK(mesh.mean(rank > 0) == 2.0 / 3.0);
    static_assert(std::is_same_v<decltype(mesh.sum(rank)), int64_t>);
    static_assert(std::is_same_v<decltype(mesh.mean(rank)), double>);
  });
}

TEST_CASE("a maximum is NaN if any rank's value is") {
  testing::run_ranks(
      2, [](const Mesh& mesh) { CHECK(std::isnan(mesh.max(mesh.rank() == 0 ? kNan : 1.0))); });
}

TEST_CASE("a tensor of one element counts as its value") {
  testing::run_ranks(2, [](const Mesh& mesh) {
    const AlmostTensor loss{{1.0F + static_cast<float>(mesh.rank())}};
    CHECK(mesh.mean(loss, "loss") == 1.5);
    CHECK(mesh.sum(loss) == 3);
    CHECK(mesh.max(loss) == 2);
  });
}

TEST_CASE("a tensor of more elements, or none, is refused with its name and the fix") {
  const Mesh mesh = Mesh::single();
  CHECK_THROWS_WITH_AS(
      mesh.mean(AlmostTensor{{1, 2, 3}}, "loss"),
      doctest::Contains("a value to reduce over the ranks is a tensor of 3 elements, expected 1 "
                        "element ('loss'); hint: reduce the tensor to one element (loss.mean()), "),
      InvalidArgument);
  CHECK_THROWS_WITH_AS(mesh.sum(AlmostTensor{}), doctest::Contains("a tensor of 0 elements"),
                       InvalidArgument);
}

TEST_CASE("a number that int64 cannot hold is refused") {
  CHECK_THROWS_WITH_AS(
      Mesh::single().sum(uint64_t{1} << 63, "bytes"),
      doctest::Contains(
          "value 9223372036854775808 exceeds int64's maximum 9223372036854775807 ('bytes')"),
      InvalidArgument);
}

TEST_CASE(
    "a sum of whole numbers beyond int64 is refused on all ranks, a detour beyond it is not") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  testing::run_ranks(3, [&](const Mesh& mesh) {
    const std::array<int64_t, 3> detour = {kMost, 5, -5};
    CHECK(mesh.sum(detour[mesh.rank()]) == kMost);
    CHECK(mesh.sum(mesh.rank() == 1 ? kLeast : 0) == kLeast);
    CHECK(mesh.sum(int64_t{-1}) == -3);
    for (const int64_t most : {kMost, kLeast}) {
      CHECK_THROWS_WITH_AS(mesh.sum(std::array{int64_t{1}, most}, "tokens"),
                           doctest::Contains("the sum of the ranks' integers is about "),
                           InvalidArgument);
    }
    CHECK(mesh.max(kMost - mesh.rank()) == kMost);
  });
}

TEST_CASE("a mean by weights leaves out ranks of weight 0, whatever their value") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const std::array<double, 3> losses = {1, kNan, 4};
    const std::array<int64_t, 3> labels = {3, 0, 1};
    const int rank = mesh.rank();
    CHECK(mesh.mean(losses[rank], labels[rank], "loss") == 7.0 / 4);
    const AlmostTensor count{{static_cast<float>(labels[rank])}};
    CHECK(mesh.mean(AlmostTensor{{static_cast<float>(losses[rank])}}, count) == 7.0 / 4);
    const auto [loss, twice] = mesh.mean(std::array{losses[rank], 2 * losses[rank]}, labels[rank]);
    CHECK(loss == 7.0 / 4);
    CHECK(twice == 7.0 / 2);
    CHECK(std::isnan(mesh.mean(losses[rank], 0)));
    CHECK(std::isnan(mesh.mean(losses[rank])));
  });
  for (const double weight : {-1.0, kNan, std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH_AS(Mesh::single().mean(1.0, weight, "loss"),
                         doctest::Contains("a rank's weight in a mean is "), InvalidArgument);
  }
}

TEST_CASE("several values travel in one collective and come back as they were given") {
  testing::run_ranks(2, [](const Mesh& mesh) {
    const auto rank = static_cast<float>(mesh.rank());
    const auto [loss, accuracy] =
        mesh.mean(std::array{AlmostTensor{{rank}}, AlmostTensor{{rank + 2}}});
    CHECK(loss == 0.5);
    CHECK(accuracy == 2.5);
    CHECK(mesh.sum(std::array{1, mesh.rank()}) == std::array<int64_t, 2>{2, 1});
    CHECK(mesh.mean(std::array{1, mesh.rank()}) == std::array{1.0, 0.5});
    CHECK(mesh.max(std::vector<float>{rank, 1, -rank}) == std::vector<double>{1, 1, 0});
    CHECK(mesh.sum(std::vector<double>{}).empty());
  });
}

TEST_CASE("gathered values lie in rank order") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const std::array<float, 2> mine = {static_cast<float>(mesh.rank()), 0.5F};
    CHECK(mesh.gather(mine) == std::vector<float>{0, 0.5F, 1, 0.5F, 2, 0.5F});
    CHECK(mesh.gather(std::vector<double>{1e300 * mesh.rank()}) ==
          std::vector<double>{0, 1e300, 2e300});
    CHECK(mesh.gather(std::vector<int64_t>{(int64_t{1} << 60) + mesh.rank()}).back() ==
          (int64_t{1} << 60) + 2);
    CHECK(mesh.gather(std::vector<float>{}).empty());
  });
}

TEST_CASE("ranks that ask for different values are told both sides") {
  const auto check = [](auto ask, const char* one, const char* other) {
    for (const std::string& error : testing::errors_of_ranks(2, ask)) {
      CAPTURE(error);
      CHECK(error.find(one) != std::string::npos);
      CHECK(error.find(other) != std::string::npos);
    }
  };
  check([](const Mesh& mesh) { mesh.sum(1.0, mesh.rank() == 0 ? "loss" : "windows"); }, "'loss'",
        "'windows'");
  check([](const Mesh& mesh) { mesh.rank() == 0 ? mesh.sum(1.0) : mesh.sum(1); }, "float64",
        "int64");
  check([](const Mesh& mesh) { mesh.gather(std::vector<float>(3 + mesh.rank())); }, "of 3 float32",
        "of 4 float32");
  check([](const Mesh& mesh) { mesh.rank() == 0 ? mesh.sum(1.0, "v") : mesh.max(1.0, "v"); }, "sum",
        "max");
}

}  // namespace
}  // namespace fsdp
