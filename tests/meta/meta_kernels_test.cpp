#include <fsdp/error.h>

#include <set>

#include "libtorch/torch_memory.h"
#include "memory/memory_meter.h"
#include "meta/meta_mode.h"
#include "support/torch_doctest.h"

using namespace fsdp;

namespace {

using Tensors = std::vector<at::Tensor>;
namespace F = torch::nn::functional;

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;  // shapes of the inputs; each needs a gradient
  std::function<at::Tensor(const Tensors&)> run;
  at::ScalarType type = at::kFloat;
};

struct Seen {
  std::vector<std::string> tensors;  // shape, strides and dtype of result and gradients
  int64_t kept = 0, forward_peak = 0, backward_peak = 0;
  std::vector<std::string> probed;
};

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  if (!tensor.defined()) return "undefined";
  text << tensor.sizes() << " " << tensor.strides() << " " << tensor.scalar_type();
  return text.str();
}

Seen run_on(at::Device device, const Case& each) {
  Seen seen;
  const auto meter = std::make_shared<MemoryMeter>();
  std::optional<MetaMode> mode;
  if (device.is_meta()) mode.emplace(/*cpu_is_planned=*/true);
  const torch_memory::MeterScope metered(meter);
  Tensors inputs;
  for (const std::vector<int64_t>& shape : each.shapes) {
    inputs.push_back(
        at::zeros(shape, at::TensorOptions().dtype(each.type).device(device)).requires_grad_());
  }
  const int64_t before = meter->reading().now.torch;
  meter->reset_peak();
  const at::Tensor result = each.run(inputs);
  seen.kept = meter->reading().now.torch - before;
  seen.forward_peak = meter->reading().peaks.torch - before;
  seen.tensors.push_back(describe(result));
  const at::Tensor gradient = at::ones_like(result);
  meter->reset_peak();
  if (result.requires_grad()) result.backward(gradient);
  seen.backward_peak = meter->reading().peaks.torch - before;
  for (const at::Tensor& input : inputs) seen.tensors.push_back(describe(input.grad()));
  if (mode) seen.probed = mode->probed();
  return seen;
}

at::Tensor whole(const at::Tensor& like, std::vector<int64_t> shape) {
  return at::zeros(shape, like.options().dtype(at::kLong));
}
at::Tensor plain(const at::Tensor& like, std::vector<int64_t> shape) {
  return at::zeros(shape, like.options());
}

// Returns the number of bytes by which plan and run may differ. The default covers a number that
// only one of them turns into a tensor.
int64_t slack_of(std::string_view name) {
  struct Slack {
    std::string_view name;
    int64_t bytes;
  };
  static constexpr Slack kSlack[] = {
      {"conv2d of three channels", 160000},  // oneDNN's scratch area depends on the shape
      {"conv3d", 29000},                     // oneDNN's blocks without AVX-512
      {"conv2d by matrices", 200},           // a bias for a whole block
      {"index", 3300},                       // real devices add to zeros in place
      {"maximum", 200},                      // real devices fill in place
      {"nan_to_num", 100},                   // a mask of LibTorch's own kernel
      {"mse_loss", 210},                     // the losses before the mean
      {"smooth_l1_loss", 210},               // the losses before the mean
  };
  for (const Slack& each : kSlack) {
    if (each.name == name) return each.bytes;
  }
  return 16;
}

void check_alike(const Case& each, bool probes) {
  CAPTURE(std::string(each.name));
  CAPTURE(std::string(c10::toString(each.type)));
  at::set_num_threads(1);
  const Seen here = run_on(at::kCPU, each);
  const Seen planned = run_on(at::kMeta, each);
  CHECK((planned.tensors == here.tensors));
  if (planned.tensors != here.tensors) {
    for (size_t i = 0; i < here.tensors.size(); ++i) {
      MESSAGE(planned.tensors[i] << " planned, run " << here.tensors[i]);
    }
  }
  const auto check_bytes = [&](int64_t of_plan, int64_t of_run) {
    CAPTURE(of_plan);
    CAPTURE(of_run);
    CHECK(std::abs(of_plan - of_run) <= slack_of(each.name));
  };
  check_bytes(planned.kept, here.kept);
  check_bytes(planned.forward_peak, here.forward_peak);
  check_bytes(planned.backward_peak, here.backward_peak);
  CHECK(planned.probed.empty() == !probes);
  for (const std::string& name : planned.probed) {
    if (!probes) MESSAGE("probed: " << name);
  }
}

const Case kNorms[] = {
    {"layer_norm",
     {{6, 8, 16}, {16}, {16}},
     [](const Tensors& x) { return at::layer_norm(x[0], {16}, x[1], x[2]); }},
    {"layer_norm without parameters",
     {{6, 8, 16}},
     [](const Tensors& x) {
       return at::layer_norm(x[0], {8, 16});
     }},
    {"layer_norm of bfloat16",
     {{6, 8, 16}, {16}, {16}},
     [](const Tensors& x) { return at::layer_norm(x[0], {16}, x[1], x[2]); },
     at::kBFloat16},
    {"layer_norm of bfloat16 by float",
     {{6, 8, 16}, {16}, {16}},
     [](const Tensors& x) { return at::layer_norm(x[0].to(at::kBFloat16), {16}, x[1], x[2]); }},
    {"layer_norm of what lies across",
     {{6, 16, 8}, {16}},
     [](const Tensors& x) { return at::layer_norm(x[0].transpose(1, 2), {16}, x[1]); }},
    {"group_norm",
     {{6, 8, 5, 7}, {8}, {8}},
     [](const Tensors& x) { return at::group_norm(x[0], 4, x[1], x[2]); }},
    {"group_norm without parameters",
     {{6, 8, 5, 7}},
     [](const Tensors& x) { return at::group_norm(x[0], 4); }},
    {"group_norm of bfloat16",
     {{6, 8, 5, 7}, {8}, {8}},
     [](const Tensors& x) { return at::group_norm(x[0], 4, x[1], x[2]); },
     at::kBFloat16},
    {"batch_norm",
     {{6, 8, 5, 7}, {8}, {8}},
     [](const Tensors& x) {
       return at::batch_norm(x[0], x[1], x[2], plain(x[0], {8}), plain(x[0], {8}), true, 0.1, 1e-5,
                             false);
     }},
    {"batch_norm of an evaluation",
     {{6, 8, 5, 7}, {8}, {8}},
     [](const Tensors& x) {
       return at::batch_norm(x[0], x[1], x[2], plain(x[0], {8}), plain(x[0], {8}), false, 0.1, 1e-5,
                             false);
     }},
    {"instance_norm",
     {{6, 8, 5, 7}, {8}, {8}},
     [](const Tensors& x) {
       return at::instance_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false);
     }},
    {"rms_norm",
     {{6, 8, 16}, {16}},
     [](const Tensors& x) { return at::rms_norm(x[0], {16}, x[1]); }},
    {"var", {{6, 8, 16}}, [](const Tensors& x) { return at::var(x[0], 1); }},
    {"std", {{6, 8, 16}}, [](const Tensors& x) { return at::std(x[0], 1, true, true); }},
};

const Case kConvolutions[] = {
    {"conv1d",
     {{2, 16, 64}, {32, 16, 3}, {32}},
     [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2], 1, 1); }},
    {"conv2d",
     {{2, 16, 32, 32}, {32, 16, 3, 3}, {32}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); }},
    {"conv2d of three channels",
     {{2, 3, 64, 64}, {16, 3, 7, 7}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 2, 3); }},
    {"conv2d of eight channels",
     {{2, 8, 32, 32}, {24, 8, 3, 3}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 1, 1); }},
    {"conv2d of strides",
     {{2, 20, 32, 32}, {40, 20, 3, 3}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 2, 1); }},
    {"conv2d of points",
     {{20, 16, 32, 32}, {64, 16, 1, 1}, {64}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2]); }},
    {"conv2d by matrices",
     {{2, 4, 8, 8}, {8, 4, 3, 3}, {8}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2]); }},
    {"conv2d of each channel",
     {{2, 32, 32, 32}, {32, 1, 3, 3}},
     [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 1, 1, 1, 32); }},
    {"conv3d",
     {{2, 16, 8, 16, 16}, {16, 16, 3, 3, 3}, {16}},
     [](const Tensors& x) { return at::conv3d(x[0], x[1], x[2], 1, 1); }},
    {"conv_transpose2d",
     {{2, 32, 16, 16}, {32, 16, 2, 2}, {16}},
     [](const Tensors& x) { return at::conv_transpose2d(x[0], x[1], x[2], 2); }},
};

const Case kAttention[] = {
    {"attention",
     {{2, 4, 40, 16}, {2, 4, 40, 16}, {2, 4, 40, 16}},
     [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); }},
    {"causal attention",
     {{2, 4, 800, 16}, {2, 4, 800, 16}, {2, 4, 800, 16}},
     [](const Tensors& x) {
       return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true);
     }},
    {"causal attention of bfloat16",
     {{2, 4, 200, 16}, {2, 4, 200, 16}, {2, 4, 200, 16}},
     [](const Tensors& x) {
       return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true);
     },
     at::kBFloat16},
    {"attention of bfloat16, odd sizes",
     {{2, 4, 201, 15}, {2, 4, 603, 15}, {2, 4, 603, 15}},
     [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); },
     at::kBFloat16},
    {"attention of bfloat16, few queries",
     {{1, 2, 63, 32}, {1, 2, 800, 32}, {1, 2, 800, 32}},
     [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); },
     at::kBFloat16},
    {"attention of bfloat16, long sequences",
     {{1, 2, 800, 64}, {1, 2, 800, 64}, {1, 2, 800, 64}},
     [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); },
     at::kBFloat16},
    {"attention by a mask",
     {{2, 4, 40, 16}, {2, 4, 40, 16}, {2, 4, 40, 16}},
     [](const Tensors& x) {
       const at::Tensor mask = at::ones({2, 1, 1, 40}, x[0].options().dtype(at::kBool));
       return at::scaled_dot_product_attention(x[0], x[1], x[2], mask);
     }},
    {"attention with dropout",
     {{2, 4, 40, 16}, {2, 4, 40, 16}, {2, 4, 40, 16}},
     [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.5); }},
    {"attention in groups",
     {{2, 8, 40, 16}, {2, 2, 40, 16}, {2, 2, 40, 16}},
     [](const Tensors& x) {
       return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true, {}, true);
     }},
    {"attention of transposed heads",
     {{2, 40, 4, 16}, {2, 40, 4, 16}, {2, 40, 4, 16}},
     [](const Tensors& x) {
       return at::scaled_dot_product_attention(x[0].transpose(1, 2), x[1].transpose(1, 2),
                                               x[2].transpose(1, 2));
     }},
};

const Case kOthers[] = {
    {"embedding",
     {{50, 16}},
     [](const Tensors& x) {
       return at::embedding(x[0], whole(x[0], {3, 5}));
     }},
    {"embedding with padding",
     {{50, 16}},
     [](const Tensors& x) {
       return at::embedding(x[0], whole(x[0], {3, 5}), 0);
     }},
    {"index_select",
     {{6, 8, 16}},
     [](const Tensors& x) { return x[0].index_select(1, whole(x[0], {5})); }},
    {"index", {{50, 16}}, [](const Tensors& x) { return x[0].index({whole(x[0], {5})}); }},
    {"where", {{6, 8}, {8}}, [](const Tensors& x) { return at::where(x[0] > 0, x[0], x[1]); }},
    {"where of a number",
     {{6, 8}},
     [](const Tensors& x) { return at::where(x[0] > 0, x[0], 0.0); }},
    {"flip", {{6, 8}}, [](const Tensors& x) { return at::flip(x[0].t(), {1}); }},
    {"roll", {{6, 8}}, [](const Tensors& x) { return at::roll(x[0], {1}, {1}); }},
    {"unfold", {{6, 8}}, [](const Tensors& x) { return x[0].unfold(1, 2, 2).contiguous(); }},
    {"cumsum", {{6, 8}}, [](const Tensors& x) { return at::cumsum(x[0], 1); }},
    {"maximum", {{6, 8}, {6, 8}}, [](const Tensors& x) { return at::maximum(x[0], x[1]); }},
    {"relu", {{6, 8}}, [](const Tensors& x) { return at::relu(x[0]); }},
    {"relu of what lies across", {{6, 8}}, [](const Tensors& x) { return at::relu(x[0].t()); }},
    {"relu in place",
     {{6, 8}},
     [](const Tensors& x) {
       at::Tensor y = x[0] * 2;
       return at::relu_(y);
     }},
    {"relu6", {{6, 8}}, [](const Tensors& x) { return F::relu6(x[0]); }},
    {"hardswish", {{6, 8}}, [](const Tensors& x) { return at::hardswish(x[0]); }},
    {"prelu", {{6, 8}, {8}}, [](const Tensors& x) { return at::prelu(x[0], x[1]); }},
    {"glu", {{6, 8}}, [](const Tensors& x) { return at::glu(x[0]); }},
    {"log_sigmoid", {{6, 8}}, [](const Tensors& x) { return at::log_sigmoid(x[0]); }},
    {"abs", {{6, 8}}, [](const Tensors& x) { return at::abs(x[0]); }},
    {"nan_to_num", {{6, 8}}, [](const Tensors& x) { return at::nan_to_num(x[0]); }},
    {"mse_loss",
     {{6, 8}},
     [](const Tensors& x) {
       return at::mse_loss(x[0], plain(x[0], {6, 8}));
     }},
    {"adaptive_avg_pool2d",
     {{6, 8, 9, 9}},
     [](const Tensors& x) {
       return at::adaptive_avg_pool2d(x[0], {2, 3});
     }},
};

// The meta kernels of these operators run LibTorch's own kernels on zeros.
const Case kProbed[] = {
    {"huber_loss",
     {{6, 8}},
     [](const Tensors& x) {
       return at::huber_loss(x[0], plain(x[0], {6, 8}));
     }},
    {"smooth_l1_loss",
     {{6, 8}},
     [](const Tensors& x) {
       return at::smooth_l1_loss(x[0], plain(x[0], {6, 8}));
     }},
    {"binary_cross_entropy",
     {{6, 8}},
     [](const Tensors& x) {
       return at::binary_cross_entropy(at::sigmoid(x[0]), plain(x[0], {6, 8}));
     }},
    {"cross entropy of images",
     {{2, 10, 4, 4}},
     [](const Tensors& x) {
       return at::cross_entropy_loss(x[0], whole(x[0], {2, 4, 4}));
     }},
    {"embedding_bag",
     {{50, 16}},
     [](const Tensors& x) {
       return std::get<0>(at::embedding_bag(x[0], whole(x[0], {16}), whole(x[0], {2})));
     }},
    {"reflection_pad2d",
     {{2, 3, 8, 8}},
     [](const Tensors& x) {
       return at::reflection_pad2d(x[0], {1, 1, 1, 1});
     }},
    {"max_pool3d", {{2, 3, 8, 8, 8}}, [](const Tensors& x) { return at::max_pool3d(x[0], 2); }},
    {"grid_sampler",
     {{2, 4, 8, 8}, {2, 8, 8, 2}},
     [](const Tensors& x) { return at::grid_sampler(x[0], x[1], 0, 0, false); }},
    {"cdist", {{2, 8, 3}, {2, 8, 3}}, [](const Tensors& x) { return at::cdist(x[0], x[1]); }},
    {"fft", {{2, 8}}, [](const Tensors& x) { return at::abs(at::fft_rfft(x[0])); }},
};

}  // namespace

TEST_CASE("normalisations without memory are the CPU's in shape, strides, type and bytes") {
  for (const Case& each : kNorms) check_alike(each, /*probes=*/false);
}

TEST_CASE("attention without memory is the CPU's in shape, strides, type and bytes") {
  for (const Case& each : kAttention) check_alike(each, /*probes=*/false);
}

TEST_CASE("convolutions without memory are the CPU's in shape, strides, type and bytes") {
  for (const Case& each : kConvolutions) check_alike(each, /*probes=*/false);
}

TEST_CASE("other operators without memory are the CPU's in shape, strides, type and bytes") {
  for (const Case& each : kOthers) check_alike(each, /*probes=*/false);
}

TEST_CASE("what has no kernel without memory runs on zeros, with the bytes of the CPU") {
  for (const Case& each : kProbed) check_alike(each, /*probes=*/true);
}
