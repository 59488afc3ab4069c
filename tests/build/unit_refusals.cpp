// Misuse that fsdp::Unit and tensor_visit.h must refuse at compile time. After each comment that
// begins with "refused:", the compiler must report one error before the next such comment. The
// error is a static assertion that contains the comment's text. unit_refusals_test.py checks this.
#include <fsdp/unit.h>
#include <torch/nn/modules.h>

#include <any>
#include <functional>
#include <memory>
#include <span>

namespace {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width) : linear(register_module("linear", nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  nn::Linear linear;
};
TORCH_MODULE(Block);
class Later;

struct FinalImpl final : nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};
struct OverloadedImpl : nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
  at::Tensor forward(at::Tensor x, at::Tensor y) { return x + y; }
};
struct TemplateImpl : nn::Module {
  template <class T>
  T forward(T x) {
    return x;
  }
};
struct NoForwardImpl : nn::Module {
  at::Tensor encode(at::Tensor x) { return x; }
};
class PrivateImpl : public nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};
struct RvalueImpl : nn::Module {
  at::Tensor forward(at::Tensor x) && { return x; }
};
struct MemberImpl : nn::Module {
  std::function<at::Tensor(at::Tensor)> forward;
};
struct ReferenceImpl : nn::Module {
  const at::Tensor& forward(const at::Tensor& x) { return kept = x; }
  at::Tensor kept;
};

void types() {
  // refused: T must be a module's holder (TORCH_MODULE) or a class derived from torch::nn
  fsdp::Unit<int> number;
  // refused: write Unit<Block>, not Unit<Block*>
  fsdp::Unit<Block*> pointer;
  // refused: T must be a module's holder
  fsdp::Unit<std::shared_ptr<BlockImpl>> shared;
  // refused: Unit<const Block>
  fsdp::Unit<const Block> constant = nullptr;
  // refused: must be defined before
  fsdp::Unit<Later> later = nullptr;
  // refused: must not be final
  fsdp::Unit<FinalImpl> final_class;
  // refused: must not be a unit already
  fsdp::Unit<fsdp::Unit<Block>> twice(4);
  // refused: must be one public function: no template, not overloaded
  fsdp::Unit<OverloadedImpl> overloaded;
  // refused: (fsdp::UnitScope runs them)
  fsdp::Unit<TemplateImpl> of_template;
  // refused: shard the unchanged module by Options::units (docs/migration.md)
  fsdp::Unit<NoForwardImpl> no_forward;
  // refused: fsdp::Unit<T> runs the forward of T's module
  fsdp::Unit<PrivateImpl> of_private;
  // refused: not && or volatile
  fsdp::Unit<RvalueImpl> of_rvalue;
  // refused: fsdp::Unit<T> runs the forward of T's module
  fsdp::Unit<MemberImpl> member;
  // refused: wrap the module in a module that has such a forward
  fsdp::Unit<nn::Sequential> sequential(nn::Linear(4, 4), nn::ReLU());
  // refused: must return by value
  fsdp::Unit<ReferenceImpl> reference;
}

void constructors(Block block, const std::shared_ptr<nn::LinearImpl>& linear,
                  std::unique_ptr<BlockImpl> unique, nn::Module& module) {
  // refused: fsdp::Unit constructs its module itself, so pass the arguments of the module's
  fsdp::Unit<Block> of_holder(block);
  // refused: To shard a module that exists already, use Options::units (docs/migration.md)
  fsdp::Unit<Block> of_shared(block.ptr());
  // refused: a module that exists already
  fsdp::Unit<Block> of_pointer(block.get());
  // refused: a module that exists already
  fsdp::Unit<Block> of_reference(*block);
  // refused: a module that exists already
  fsdp::Unit<Block> of_unique(std::move(unique));
  // refused: a module that exists already
  fsdp::Unit<Block> of_module(module);
  // refused: no constructor of T's module accepts these arguments
  fsdp::Unit<Block> of_many(4, 4, 4);
  // refused: no constructor of T's module accepts these arguments
  fsdp::Unit<Block> of_other(linear);
  // refused: default construct a module which has no default constructor
  fsdp::Unit<Block> of_nothing;
}

struct Base {
  at::Tensor a;
};
struct DerivedWith : Base {
  at::Tensor b;
};
struct DerivedWithout : Base {};
struct Tag {};
struct Tagged : Tag {
  at::Tensor a;
};
struct Array {
  at::Tensor a;
  at::Tensor b[2];
  int c;
};
struct ArrayLast {
  at::Tensor b[3];
};
struct Reference {
  at::Tensor& a;
};
struct ReferenceLast {
  at::Tensor a;
  at::Tensor& b;
};
union Either {
  int a;
  float b;
};
struct Seventeen {
  at::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q;
};
class Closed {
 public:
  Closed() = default;

 private:
  at::Tensor a;
};
struct FromAll {
  FromAll() = default;
  template <class T>
  FromAll(const T&) {}
};
struct Greedy {
  at::Tensor a;
  FromAll b;
  at::Tensor c;
};
struct Held {
  at::Tensor a;
  std::any b;
};
struct Const {
  const at::Tensor a;
};

struct Given : Base {
  at::Tensor b;
};
struct TakesImpl : nn::Module {
  Given forward(Given x) { return x; }
};

template <class T>
void look(T& value) {
  fsdp::for_each_tensor(value, [](at::Tensor&) {});
}

void aggregates(DerivedWith& derived, DerivedWithout& derived_without, Tagged& tagged, Array& array,
                ArrayLast& array_last, Reference& reference, Given& given) {
  // refused: only if it has at most 16 fields and no base class
  look(derived);
  // refused: and no base class
  look(derived_without);
  // refused: for this type, define a function visit_tensors(T&, visit)
  look(tagged);
  // refused: an array (use std::array)
  look(array);
  // refused: an array (use std::array)
  look(array_last);
  // refused: and no base class
  fsdp::Unit<TakesImpl>()(given);
  // refused: a reference or a union
  look(reference);
}

void more_types(ReferenceLast& reference, Either& either, Seventeen& seventeen, Closed& closed,
                Greedy& greedy, Held& held, Const& constant, at::Tensor*& pointer,
                at::TensorList& list, std::span<at::Tensor>& span) {
  // refused: a reference or a union
  look(reference);
  // refused: a reference or a union
  look(either);
  // refused: only if it has at most 16 fields
  look(seventeen);
  // refused: cannot see whether this type holds tensors: define a function visit_tensors(T&, visit)
  look(closed);
  // refused: for this type, define a function visit_tensors(T&, visit)
  look(greedy);
  // refused: cannot see whether this type holds tensors
  look(held);
  // refused: and structs without const members
  look(constant);
  // refused: Instead of a pointer to a tensor, pass the tensor or a reference to it
  look(pointer);
  // refused: std::vector<at::Tensor> instead of at::TensorList
  look(list);
  // refused: and in a view (std::span) it would replace the caller's
  look(span);
}

}  // namespace
