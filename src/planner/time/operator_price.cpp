#include "planner/time/operator_price.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "fsdp/error.h"
#include "meta/value_tensors.h"

namespace fsdp {
namespace {

// Returns the bytes of the tensor's elements. An element that an expanded tensor repeats counts
// once.
double stored_bytes(const at::Tensor& tensor) {
  auto numel = static_cast<double>(tensor.itemsize());
  if (tensor.layout() != at::kStrided) return numel * static_cast<double>(tensor.numel());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0 || tensor.size(i) == 0) numel *= static_cast<double>(tensor.size(i));
  }
  return numel;
}

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, name) != names.end();
}

double numel_of(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// A product and the position of its first factor in the arguments.
struct ProductRow {
  std::string_view name;
  size_t first;
};
constexpr ProductRow kProducts[] = {
    {"aten::mm", 0},     {"aten::bmm", 0},    {"aten::matmul", 0}, {"aten::linear", 0},
    {"aten::mv", 0},     {"aten::dot", 0},    {"aten::addmm", 1},  {"aten::baddbmm", 1},
    {"aten::addmv", 1},  {"aten::addmm_", 1}, {"aten::inner", 0},  {"aten::baddbmm_", 1},
    {"aten::addmv_", 1}, {"aten::addbmm", 1}, {"aten::vdot", 0},   {"aten::linalg_matmul", 0}};

// Attention, the position of the query (key and value follow), that of is_causal, and the number of
// forwards that its operations equal. A backward computes five products, a forward two.
struct AttentionRow {
  std::string_view name;
  size_t query;
  size_t is_causal;
  double forwards;
};
constexpr AttentionRow kAttentions[] = {
    {"aten::scaled_dot_product_attention", 0, 5, 1},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", 0, 4, 1},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 1, 7, 2.5}};

constexpr std::array<std::string_view, 8> kConvolutions = {
    "aten::conv1d",           "aten::conv2d",          "aten::conv3d",
    "aten::convolution",      "aten::_convolution",    "aten::conv_transpose1d",
    "aten::conv_transpose2d", "aten::conv_transpose3d"};
constexpr std::array<std::string_view, 8> kHidesProducts = {
    "aten::lstm",     "aten::gru",       "aten::rnn_tanh", "aten::rnn_relu",
    "aten::bilinear", "aten::tensordot", "aten::cdist",    "aten::_native_multi_head_attention"};
constexpr std::array<std::string_view, 6> kLookups = {
    "aten::embedding", "aten::index_select",     "aten::gather",
    "aten::index",     "aten::nll_loss_forward", "aten::take"};
// Operators that compute no elements.
constexpr std::array<std::string_view, 6> kAllocations = {
    "aten::empty",     "aten::empty_like",        "aten::empty_strided",
    "aten::new_empty", "aten::new_empty_strided", "aten::resize_"};

// Returns the rate of products whose smallest side is `side`.
double product_rate(const TypeRates& type, double side) {
  const std::vector<ProductRate>& rates = type.products;
  const auto above = std::ranges::lower_bound(rates, side, {}, &ProductRate::side);
  if (above == rates.begin()) return rates.front().flops;
  if (above == rates.end()) return rates.back().flops;
  const ProductRate &low = above[-1], &high = *above;
  const double part = std::log(side / low.side) / std::log(high.side / low.side);
  return low.flops * std::pow(high.flops / low.flops, part);
}

// Returns 2 · the product of the sizes of all indexes of an einsum. 0 if the equation has an
// ellipsis, or if the operands are not two, because the order of the products is then not known.
double einsum_flops(std::string_view equation, const std::vector<at::Tensor>& operands,
                    double& side) {
  if (operands.size() != 2 || equation.find('.') != std::string_view::npos) return 0;
  std::map<char, double> sizes;
  size_t operand = 0;
  int64_t dimension = 0;
  for (const char c : equation.substr(0, equation.find("->"))) {
    if (c == ' ') continue;
    if (c == ',') {
      if (++operand == operands.size()) return 0;
      dimension = 0;
    } else if (dimension < operands[operand].dim()) {
      sizes[c] = static_cast<double>(operands[operand].size(dimension++));
    }
  }
  double flops = 2;
  for (const auto& [index, size] : sizes) {
    flops *= size;
    side = side == 0 ? size : std::min(side, size);
  }
  return flops;
}

}  // namespace

void OperatorPrice::note_product(const at::Tensor& first, const at::Tensor& second) {
  kind_ = TimedKind::kProducts;
  dtype_ = first.scalar_type();
  inner_ = first.dim() == 0 ? 1 : static_cast<double>(first.size(-1));
  const auto rows = first.dim() < 2     ? 1.0
                    : second.dim() <= 2 ? numel_of(first) / std::max(inner_, 1.0)
                                        : static_cast<double>(first.size(-2));
  side_ = std::min(inner_, rows);
}

// `tensors` are the query, the key and the value.
void OperatorPrice::note_attention(const c10::IValue* tensors, bool is_causal, double forwards) {
  const at::Tensor& query = tensors[0].toTensor();
  const at::Tensor& key = tensors[1].toTensor();
  const at::Tensor& value = tensors[2].toTensor();
  kind_ = TimedKind::kAttention;
  dtype_ = query.scalar_type();
  const double width = static_cast<double>(query.size(-1) + value.size(-1));
  const double pairs = numel_of(query) / static_cast<double>(std::max<int64_t>(query.size(-1), 1)) *
                       static_cast<double>(key.size(-2));
  flops_ = 2 * pairs * width * forwards * (is_causal ? 0.5 : 1);
}

void OperatorPrice::note_convolution(const at::Tensor& input, const at::Tensor& weight,
                                     bool transposed) {
  kind_ = TimedKind::kProducts;
  dtype_ = input.scalar_type();
  const double filters = static_cast<double>(std::max<int64_t>(weight.size(0), 1));
  inner_ = numel_of(weight) / filters;
  side_ = std::min(inner_, filters);
  if (transposed) flops_ = 2 * numel_of(input) * inner_;
}

// The arguments are those of aten::convolution_backward. It computes up to two gradients.
void OperatorPrice::note_convolution_backward(const c10::IValue* arguments) {
  const bool transposed = arguments[7].toBool();
  note_convolution(arguments[1].toTensor(), arguments[2].toTensor(), transposed);
  const double each = transposed ? flops_ : 2 * numel_of(arguments[0].toTensor()) * inner_;
  const auto wanted = arguments[10].toBoolList();
  flops_ = each * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
  inner_ = 0;
}

void OperatorPrice::note_flops(std::string_view name, const c10::IValue* arguments, size_t count) {
  for (const ProductRow& row : kProducts) {
    if (row.name != name) continue;
    return note_product(arguments[row.first].toTensor(), arguments[row.first + 1].toTensor());
  }
  for (const AttentionRow& row : kAttentions) {
    if (row.name != name) continue;
    const bool is_causal = row.is_causal < count && arguments[row.is_causal].toBool();
    return note_attention(arguments + row.query, is_causal, row.forwards);
  }
  if (name == "aten::convolution_backward") return note_convolution_backward(arguments);
  if (is_one_of(name, kConvolutions)) {
    const bool general = name == "aten::convolution" || name == "aten::_convolution";
    const bool transposed =
        general ? arguments[6].toBool() : name.starts_with("aten::conv_transpose");
    return note_convolution(arguments[0].toTensor(), arguments[1].toTensor(), transposed);
  }
  if (name == "aten::einsum") {
    const std::vector<at::Tensor> operands = arguments[1].toTensorVector();
    flops_ = einsum_flops(arguments[0].toStringRef(), operands, side_);
    if (!operands.empty()) dtype_ = operands[0].scalar_type();
    kind_ = flops_ > 0 ? TimedKind::kProducts : kind_;
    hides_products_ = flops_ == 0;
  }
  hides_products_ = hides_products_ || is_one_of(name, kHidesProducts);
}

OperatorPrice::OperatorPrice(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  const size_t count = schema.arguments().size();
  const c10::IValue* const arguments = stack.data() + (stack.size() - count);
  is_lookup_ = is_one_of(name, kLookups);
  for (size_t i = 0; i < count; ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    writes_ = writes_ || (alias != nullptr && alias->isWrite());
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      is_planned_ = is_planned_ || tensor.is_meta();
      if (tensor.has_storage()) storages_.push_back(tensor.storage().unsafeGetStorageImpl());
      if (!(is_lookup_ && i == 0)) bytes_ += stored_bytes(tensor);
    });
  }
  if (is_planned_) note_flops(name, arguments, count);
  if (name == "aten::cross_entropy_loss") bytes_ += 2 * stored_bytes(arguments[0].toTensor());
}

void OperatorPrice::add_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (is_one_of(std::string_view(schema.name()), kAllocations)) return;
  const size_t count = schema.returns().size();
  bool is_view = !writes_, has_tensor = false;
  double elements = 0, columns = 0;
  for (const c10::IValue& value : torch::jit::last(stack, count)) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      has_tensor = true;
      is_planned_ = is_planned_ || tensor.is_meta();
      is_view =
          is_view && tensor.has_storage() &&
          std::ranges::find(storages_, tensor.storage().unsafeGetStorageImpl()) != storages_.end();
      bytes_ += (is_lookup_ ? 2 : 1) * stored_bytes(tensor);
      if (elements > 0) return;
      elements = numel_of(tensor);
      columns = tensor.dim() == 0 ? 1 : static_cast<double>(tensor.size(-1));
    });
  }
  works_ = is_planned_ && has_tensor && !is_view;
  if (kind_ != TimedKind::kProducts || flops_ > 0) return;
  // 2 · elements of the result · the common side
  flops_ = 2 * elements * inner_;
  const bool is_convolution =
      schema.name().starts_with("aten::conv") || schema.name() == "aten::_convolution";
  if (!is_convolution) side_ = std::min(side_, columns);
}

TimedWork OperatorPrice::work(const Rates& rates) const {
  constexpr double kNanoseconds = 1e9;
  const double by_bytes = kNanoseconds * bytes_ / rates.copy;
  if (flops_ == 0) return {.kind = kind_, .ns = by_bytes};
  const TypeRates* const type = rates.find(dtype_);
  const bool is_attention = kind_ == TimedKind::kAttention;
  if (type == nullptr || (is_attention ? type->attention == 0 : type->products.empty())) {
    throw InvalidArgument(
        {.what = fmt::format("the rates of '{}' have no rate of {} for {}", rates.machine,
                             c10::toString(dtype_), is_attention ? "attention" : "products"),
         .where = "PlanRequest::rates",
         .hint = "plan the element type that the rates have (--param-dtype), or add the rate"});
  }
  const double flops = is_attention ? type->attention : product_rate(*type, side_);
  return {.kind = kind_, .ns = std::max(by_bytes, kNanoseconds * flops_ / flops)};
}

}  // namespace fsdp
