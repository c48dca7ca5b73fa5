#include <weft/dist_optim/layers.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/lbfgs/internal/service.h>
#include <weft/dist_optim/service/internal/optimizer_service.h>

namespace weft::dist_optim {

rpc::Layers layers(tensor::DeviceOptions devices) {
  rpc::Layers all = dist_autograd::layers(std::move(devices));
  all.push_back([](rpc::Agent& agent) {
    install_optimizers(agent);
    install_lbfgs(agent);
  });
  return all;
}

}  // namespace weft::dist_optim
