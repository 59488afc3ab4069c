// Tests which tensors are found in a unit's arguments and results. tests/build/unit_refusals.cpp
// tests types that do not compile.
#include "fsdp/tensor_visit.h"

#include <filesystem>
#include <map>

#include "support/torch_doctest.h"

namespace fsdp::testing {
namespace {

// Assigns a number to each tensor in `value`, and returns how many tensors there are.
template <class T>
int fill(T& value) {
  int count = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = torch::full({}, ++count); });
  return count;
}
int number(const at::Tensor& tensor) { return tensor.item<int>(); }

struct One {
  at::Tensor a;
};
struct Nine {
  at::Tensor a;
  int b = 0;
  at::Tensor c, d, e, f, g, h, i;
};
struct Sixteen {
  at::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p;
};
struct MixedFields {
  One one;
  std::vector<at::Tensor> several;
  std::optional<at::Tensor> maybe;
  std::string name;
  std::map<std::string, at::Tensor> by_name;
  at::Tensor row[1];
  unsigned flag : 1 = 1;
};

struct Base {
  at::Tensor a;
};
struct Derived : Base {
  at::Tensor b[2];
};
void visit_tensors(Derived& value, auto visit) {
  visit(value.a);
  for (at::Tensor& each : value.b) visit(each);
}

class Closed {
 public:
  const at::Tensor& seen() const { return tensor_; }
  friend void visit_tensors(Closed& value, auto visit) { visit(value.tensor_); }

 private:
  at::Tensor tensor_;
};

struct Nothing {};
struct StillNothing : Nothing {};
struct Numbers {
  const int count = 3;
  const char* name = "n";
  const at::ScalarType dtype = at::kFloat;
  const std::string text = "t";
};

}  // namespace
}  // namespace fsdp::testing

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("every tensor of an aggregate is found, in order, up to sixteen fields") {
  One one;
  CHECK(fill(one) == 1);
  Nine nine;
  CHECK(fill(nine) == 8);
  CHECK(number(nine.a) == 1);
  CHECK(number(nine.i) == 8);
  Sixteen sixteen;
  CHECK(fill(sixteen) == 16);
  CHECK(number(sixteen.p) == 16);
}

TEST_CASE("an aggregate's fields may be aggregates, ranges, optionals, arrays of one, bits") {
  MixedFields mixed{
      .several = std::vector<at::Tensor>(2), .maybe = at::Tensor(), .by_name = {{"x", {}}}};
  CHECK(fill(mixed) == 6);
  CHECK(number(mixed.one.a) == 1);
  CHECK(number(mixed.several[1]) == 3);
  CHECK(number(*mixed.maybe) == 4);
  CHECK(number(mixed.by_name["x"]) == 5);
  CHECK(number(mixed.row[0]) == 6);
}

TEST_CASE("a class with base classes, arrays or privacy says itself where tensors are") {
  Derived derived;
  CHECK(fill(derived) == 3);
  CHECK(number(derived.a) == 1);
  CHECK(number(derived.b[1]) == 3);
  Closed closed;
  CHECK(fill(closed) == 1);
  CHECK(number(closed.seen()) == 1);
}

TEST_CASE("what holds nothing is passed over: empty classes, functions, const numbers, paths") {
  Nothing nothing;
  StillNothing still_nothing;
  Numbers numbers;
  const auto function = [](int x) { return x; };
  CHECK(fill(nothing) == 0);
  CHECK(fill(still_nothing) == 0);
  CHECK(fill(numbers) == 0);
  CHECK(fill(function) == 0);
  std::filesystem::path path("a/b");  // a range of paths that can contain itself
  std::vector<std::filesystem::path> paths{path};
  CHECK(fill(path) == 0);
  CHECK(fill(paths) == 0);
}

TEST_CASE("const values are looked into by who only looks") {
  const Nine nine{.a = torch::full({}, 5)};
  int seen = 0;
  for_each_tensor(nine, [&](const at::Tensor& tensor) { seen += tensor.defined() ? 1 : 0; });
  CHECK(seen == 1);
  const std::vector<at::Tensor> several(3, torch::ones({}));
  const at::TensorList list(several);
  for_each_tensor(list, [&](const at::Tensor& tensor) { seen += tensor.defined() ? 1 : 0; });
  CHECK(seen == 4);
}
