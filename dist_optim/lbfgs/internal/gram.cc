#include <weft/dist_optim/lbfgs/internal/gram.h>
#include <weft/rpc/core/error.h>

#include <string>

namespace weft::dist_optim {
namespace {

constexpr double least_curvature = 1e-10;

void add_to(std::vector<double>& sum, const std::vector<double>& more) {
  if (sum.size() != more.size())
    throw rpc::Error(rpc::ErrorKind::internal, "owners report products of " + std::to_string(sum.size()) +
                                                   " and of " + std::to_string(more.size()) + " pairs");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

}  // namespace

void LbfgsProducts::add(const LbfgsProducts& more) {
  add_to(s_y, more.s_y);
  add_to(y_s, more.y_s);
  add_to(y_y, more.y_y);
  add_to(s_g, more.s_g);
  add_to(y_g, more.y_g);
  g_g += more.g_g;
}

LbfgsDirection LbfgsGram::update(const LbfgsProducts& products) {
  LbfgsDirection direction;
  direction.joins = take_pair(products);
  two_loops(direction);
  return direction;
}

void LbfgsGram::clear() {
  sy_.clear();
  yy_.clear();
  scale_ = 1;
}

bool LbfgsGram::take_pair(const LbfgsProducts& products) {
  const std::size_t k = pairs();
  const std::size_t fresh = products.s_y.empty() ? 0 : 1;
  if (products.s_y.size() != fresh * (k + 1) || products.y_s.size() != fresh * k ||
      products.y_y.size() != fresh * (k + 1) || products.s_g.size() != k + fresh ||
      products.y_g.size() != k + fresh)
    throw rpc::Error(rpc::ErrorKind::internal,
                     "L-BFGS: an owner has a history of another length than " + std::to_string(k) + " pairs");
  sg_ = products.s_g;
  yg_ = products.y_g;
  gg_ = products.g_g;
  if (fresh == 0) return false;
  if (!(products.s_y.back() > least_curvature)) {
    sg_.pop_back();
    yg_.pop_back();
    return false;
  }
  for (std::size_t i = 0; i < k; ++i) {
    sy_[i].push_back(products.y_s[i]);
    yy_[i].push_back(products.y_y[i]);
  }
  sy_.push_back(products.s_y);
  yy_.push_back(products.y_y);
  scale_ = products.s_y.back() / products.y_y.back();
  if (pairs() > history_size_) {
    for (Matrix* matrix : {&sy_, &yy_}) {
      matrix->erase(matrix->begin());
      for (auto& row : *matrix) row.erase(row.begin());
    }
    sg_.erase(sg_.begin());
    yg_.erase(yg_.begin());
  }
  return true;
}

// Nocedal's recursion. Each of its vectors is written in the basis of the history and g.
void LbfgsGram::two_loops(LbfgsDirection& direction) {
  const std::size_t k = pairs();
  direction.scale = scale_;
  auto& alpha = direction.y_weights;
  auto& s_weights = direction.s_weights;
  alpha.assign(k, 0);
  s_weights.assign(k, 0);
  for (std::size_t i = k; i-- > 0;) {  // q = -g - Σ alpha_j y_j
    double s_q = -sg_[i];
    for (std::size_t j = k; j-- > i + 1;) s_q -= alpha[j] * sy_[i][j];
    alpha[i] = s_q / sy_[i][i];
  }
  for (std::size_t i = 0; i < k; ++i) {  // r = scale q + Σ s_weights_j s_j
    double y_q = -yg_[i];
    for (std::size_t j = k; j-- > 0;) y_q -= alpha[j] * yy_[i][j];
    double y_r = scale_ * y_q;
    for (std::size_t j = 0; j < i; ++j) y_r += s_weights[j] * sy_[j][i];
    s_weights[i] = alpha[i] - y_r / sy_[i][i];
  }
  slope_ = -gg_;
  for (std::size_t i = k; i-- > 0;) slope_ -= alpha[i] * yg_[i];
  slope_ *= scale_;
  for (std::size_t i = 0; i < k; ++i) slope_ += s_weights[i] * sg_[i];
}

}  // namespace weft::dist_optim
