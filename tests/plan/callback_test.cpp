#include <doctest/doctest.h>
#include <fsdp/options.h>

#include <functional>
#include <string>

#include "runtime/dtype.h"

using namespace fsdp;

namespace {

bool is_head(std::string_view fqn) { return fqn == "head"; }

}  // namespace

TEST_CASE("a callback is unset, or calls the function that its copies share") {
  using Chooses = Callback<bool(std::string_view)>;
  const Chooses unset, null = nullptr, empty = std::function<bool(std::string_view)>();
  for (const Chooses& each : {unset, null, empty}) {
    CHECK_FALSE(static_cast<bool>(each));
    CHECK(each == unset);
    CHECK_THROWS_AS(static_cast<void>(each("head")), std::bad_function_call);
  }
  const Chooses first = is_head, second = is_head, copy = first;
  REQUIRE(static_cast<bool>(first));
  CHECK(first("head"));
  CHECK_FALSE(first("tail"));
  CHECK(first == copy);
  CHECK_FALSE(first == second);
  CHECK_FALSE(first == unset);
}

TEST_CASE("options are equal if all of them are, callbacks as copies of one") {
  const Options options{.mixed_precision = {.param_dtype = scalar_type_of(DType::kBFloat16)},
                        .ignore = is_head,
                        .seed = 3};
  Options other = options;
  CHECK((options == other));
  other.ignore = is_head;
  CHECK_FALSE((options == other));
  other.ignore = options.ignore;
  other.units = UnitPolicy("heads", [](std::string_view fqn, const auto&) { return is_head(fqn); });
  CHECK_FALSE((options == other));
  other.units = {};
  CHECK((options == other));
  other.seed = 4;
  CHECK_FALSE((options == other));
}
